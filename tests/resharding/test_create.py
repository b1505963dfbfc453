"""`create` on real servers: what it creates, and what it refuses without changing anything."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from databases.internal_tables import PLAN, ROLE, create_internal_tables
from event_token.errors import UsageError
from resharding import create
from resharding.bookkeeping import ReshardPlan, write_roles
from resharding.create import CreateRequest, create_reshard
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.resharding.accounts import resharder_of
from tests.resharding.shards import (
    Sources,
    applier_settings,
    applying,
    fresh_schema,
    sources_of,
    wait_applied,
)
from tests.resharding.writers import make_tables, rows_of, vindexes_of
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_keyspace, provision_shard
from topics.keyspace.topology import (
    ReshardEntry,
    ReshardState,
    ShardEntry,
    ShardState,
    TableVindex,
    Topology,
    read_topology,
    update_topology,
)
from topics.names import ShardTopics
from topics.progress.copy_topic import read_copies

pytestmark = pytest.mark.full


class Keyspace:
    """A source `-` with empty tables and its topology; two empty servers."""

    def __init__(
        self,
        stack: ExitStack,
        servers: list[DatabaseFixture],
        kafka: KafkaCluster,
        keyspace: str,
    ) -> None:
        self.source, *self.targets = servers
        self.sources: Sources = stack.enter_context(sources_of({"-": self.source}, kafka, keyspace))
        provision_keyspace(self.sources.kafka, keyspace)
        shards = dict(zip(("-", "-80", "80-"), servers, strict=True))
        self.request = CreateRequest(
            reshard_id="split",
            keyspace=keyspace,
            sources=("-",),
            targets=("-80", "80-"),
            servers={shard: resharder_of(d, shard) for shard, d in shards.items()},
            kafka=self.sources.kafka,
        )
        self.begin()

    def begin(self) -> None:
        """Start over with another schema."""
        self.schema = fresh_schema()
        make_tables(self.source, self.schema)
        vindexes = vindexes_of(self.schema)
        self.write(Topology(self.sources.keyspace, 0, (ShardEntry("-"),), vindexes))

    def write(self, topology: Topology) -> None:
        """Publish a topology."""
        update_topology(self.sources.kafka, self.sources.keyspace, lambda _before: topology)

    def topology(self) -> Topology:
        """Return the current topology."""
        found = read_topology(self.sources.kafka, self.sources.keyspace)
        assert found is not None
        return found

    def run(self, database: DatabaseFixture, *statements: str) -> None:
        """Run statements as root."""
        with database.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement.replace("{db}", self.schema))

    def copies(self) -> dict[str, str]:
        """Return the state of each table's copy."""
        found = read_copies(self.sources.kafka, ShardTopics(self.sources.keyspace, "-"))
        return {copy.table: copy.state.value for copy in found.values()} or {"": "none"}

    def databases(self) -> list[set[str]]:
        """Return the databases on the targets."""
        found = []
        for database in self.targets:
            with database.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SHOW DATABASES")
                found.append({name for (name,) in cursor.fetchall()})
        return found


@pytest.fixture
def split(clean_servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str) -> Any:
    with ExitStack() as stack:
        yield Keyspace(stack, clean_servers, kafka, keyspace)


class Killed(Exception):  # noqa: N818 - what happened
    """Raised where a kill would end a creation."""


def die(*_: object) -> None:
    """Stand in for a kill."""
    raise Killed


def test_created_targets_follow(split: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are created without triggers; earlier and later rows reach their target.

    A creation that dies before the topology has it is made again by the same command.
    """
    split.run(
        split.source,
        *(f"INSERT INTO {{db}}.orders VALUES ({n}, {n}, 'o{n}', 1, 'old')" for n in range(90, 99)),
    )
    split.run(
        split.source,
        "USE {db}",
        "CREATE TRIGGER {db}.t BEFORE INSERT ON {db}.orders FOR EACH ROW SET NEW.note = 'x'",
    )
    split.sources.last_seqs()  # waits until the log has these statements
    with monkeypatch.context() as patch:
        patch.setattr(create, "update_topology", die)
        with pytest.raises(Killed):
            create_reshard(split.request)
    plan = create_reshard(split.request).plan

    topology = split.topology()
    assert topology.reshards == (ReshardEntry("split", ("-",), ("-80", "80-"), "RUNNING"),)
    assert [(s.name, s.state) for s in topology.shards] == [
        ("-", ShardState.SERVING),
        ("-80", ShardState.TARGET),
        ("80-", ShardState.TARGET),
    ]
    split.run(
        split.source,
        *(f"INSERT INTO {{db}}.orders VALUES ({n}, {n}, 'c{n}', 1.5, NULL)" for n in range(40)),
    )
    targets = dict(zip(("-80", "80-"), split.targets, strict=True))
    with ExitStack() as stack:
        appliers = [
            stack.enter_context(applying(applier_settings(plan, shard, database, split.sources)))
            for shard, database in targets.items()
        ]
        wait_for("the copy is complete", lambda: set(split.copies().values()) == {"completed"})
        wait_applied(split.sources, plan.reshard_id, targets, appliers)
    assert rows_of(targets, split.schema) == rows_of({"-": split.source}, split.schema)
    with pytest.raises(UsageError, match="there was one with this id"):
        create_reshard(split.request)


def test_a_copy_that_cannot_start_names_its_command(
    kafka: KafkaCluster, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources whose producers do not answer are listed, and the command to run names them all."""
    config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    provision_keyspace(config, keyspace)
    for source in ("-80", "80-"):
        provision_shard(config, ShardTopics(keyspace, source))
    plan = ReshardPlan("merge", keyspace, ("-80", "80-"), ("-",), (), "", {})
    monkeypatch.setattr(create, "COPY_ANSWER_S_MAX", 1.0)

    with pytest.raises(UsageError) as caught:
        create._ask_for_copies(plan, config)

    command = f"shardstream copy start {keyspace} --shard=-80 --shard=80-"
    assert str(caught.value).endswith(command)


def _ranges(*targets: str) -> Callable[[Keyspace], CreateRequest]:
    def change(split: Keyspace) -> CreateRequest:
        servers = dict(split.request.servers)
        for shard, server in zip(targets, list(servers.values())[1:], strict=False):
            servers[shard] = replace(server, shard=shard)
        return replace(split.request, targets=targets, servers=servers)

    return change


def _on_source(*statements: str) -> Callable[[Keyspace], CreateRequest]:
    def change(split: Keyspace) -> CreateRequest:
        split.run(split.source, *statements)
        return split.request

    return change


def _on_target(*statements: str) -> Callable[[Keyspace], CreateRequest]:
    def change(split: Keyspace) -> CreateRequest:
        split.run(split.targets[1], "CREATE DATABASE {db}", *statements)
        return split.request

    return change


def _each(*changes: Callable[[Keyspace], CreateRequest]) -> Callable[[Keyspace], CreateRequest]:
    def change(split: Keyspace) -> CreateRequest:
        *_, request = [one(split) for one in changes]
        return request

    return change


def _vindex(table: str, column: str, vindex: str) -> Callable[[Keyspace], CreateRequest]:
    def change(split: Keyspace) -> CreateRequest:
        declared = TableVindex(split.schema, table, (column,), vindex)
        others = tuple(v for v in split.topology().vindexes if v.table != table)
        split.write(replace(split.topology(), vindexes=(*others, declared)))
        return split.request

    return change


def _wrong_account(split: Keyspace) -> CreateRequest:
    source = split.source
    account = replace(split.request.servers["-"], user=source.user, password=source.password)
    nobody = replace(split.request.servers["80-"], user="nobody", password="x")
    return replace(split.request, servers={**split.request.servers, "-": account, "80-": nobody})


def _plan_of_another_keyspace(split: Keyspace) -> CreateRequest:
    shards = (split.request.sources, split.request.targets)
    plan = ReshardPlan(split.request.reshard_id, "another", *shards, (), "", {})
    with split.targets[0].connect() as connection, connection.cursor() as cursor:
        create_internal_tables(connection, (PLAN,))
        values = (plan.reshard_id, plan.to_json())
        cursor.execute("INSERT INTO _shardstream.plan VALUES (%s, %s)", values)
    return split.request


def _under_way(split: Keyspace) -> CreateRequest:
    now = split.topology()
    entry = ReshardEntry("earlier", ("-",), ("-.2",), ReshardState.RUNNING.value)
    shards = (*now.shards, ShardEntry("-.2", ShardState.TARGET))
    split.write(replace(now, shards=shards, reshards=(entry,)))
    return split.request


def _role_of_another_keyspace(split: Keyspace) -> CreateRequest:
    plan = ReshardPlan(split.request.reshard_id, "another", ("-80",), ("-40", "40-80"), (), "", {})
    with split.source.connect() as connection:
        create_internal_tables(connection, (ROLE,))
        write_roles(connection, plan)
    return split.request


BAD = {
    "two reshards of one source": (
        _under_way,
        ["source - is being resharded by earlier: first switch that one", "reshard cancel ks"],
    ),
    "gap": (_ranges("-80", "90-"), ["a gap or an overlap"]),
    "overlap": (_ranges("-80", "70-"), ["a gap or an overlap"]),
    "no range": (_ranges("-80", "xyz"), ["xyz"]),
    "used name": (_ranges("-"), ["target - has been a shard", "take -.2"]),
    "not serving": (lambda s: replace(s.request, sources=("-80",)), ["not a serving shard"]),
    "bad id": (lambda s: replace(s.request, reshard_id="a b"), ["reshard id 'a b'"]),
    "tables of the source": (
        _each(
            _on_source(
                "CREATE TABLE {db}.strangers (id INT PRIMARY KEY)",
                "ALTER TABLE {db}.sessions DROP PRIMARY KEY, ENGINE=MyISAM",
                "CREATE TABLE {db}.misnamed LIKE {db}.orders",
            ),
            _vindex("nowhere", "id", "hash"),
            _vindex("misnamed", "nix", "hash"),
            _vindex("orders", "note", "hash"),
        ),
        [
            *("{db}.strangers has no vindex", "(a reference table) belongs in a database without"),
            *("{db}.nowhere has a vindex but does not exist", "over column nix"),
            *("over column note", "has it as text"),
            *("{db}.sessions has no primary key", "{db}.sessions is MyISAM"),
        ],
    ),
    "keys from AUTO_INCREMENT": (
        _on_source(
            "ALTER TABLE {db}.orders MODIFY id BIGINT NOT NULL AUTO_INCREMENT",
            "ALTER TABLE {db}.sessions MODIFY user_id BIGINT NOT NULL AUTO_INCREMENT",
        ),
        [
            *("{db}.orders takes id from AUTO_INCREMENT", "make the key (user_id, id)"),
            "{db}.sessions takes user_id from AUTO_INCREMENT",
        ],
    ),
    "tables of a target": (
        _on_target(
            "CREATE TABLE {db}.orders (id INT PRIMARY KEY)",
            "INSERT INTO {db}.orders VALUES (1)",
            "CREATE TABLE {db}.more (id INT)",
        ),
        [
            *("{db}.orders is not empty", "not defined as on the source", "`id`"),
            "{db}.more is on no source",
        ],
    ),
    "account": (_wrong_account, ["lacks INSERT", "GRANT INSERT", "as nobody", "Access denied"]),
    "target of another keyspace": (
        _plan_of_another_keyspace,
        ["it is a target of reshard split of keyspace another: end that one"],
    ),
    "id of another keyspace": (
        _role_of_another_keyspace,
        ["keyspace another has a reshard split there, too: take another id"],
    ),
}


def test_bad_input_changes_nothing(
    clean_servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """Every problem is reported, and neither servers nor topology are changed."""
    with ExitStack() as stack:
        split = Keyspace(stack, clean_servers, kafka, keyspace)
        for name, (change, says) in BAD.items():
            split.begin()
            request = change(split)
            before = (split.topology(), split.databases())

            with pytest.raises(UsageError) as caught:
                create_reshard(request)

            for text in ["nothing was changed", *says]:
                assert text.replace("{db}", split.schema) in str(caught.value), name
            assert (split.topology(), split.databases()) == before, name
