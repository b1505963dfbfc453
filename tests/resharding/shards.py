"""Shards on real servers, appliers, and comparisons, for all tests of resharding."""

import json
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

from databases.internal_tables import create_internal_tables
from resharding.apply.applier import ApplierSettings, ApplierStatus, run_applier
from resharding.bookkeeping import ReshardPlan, read_checkpoints, write_plan
from resharding.servers import open_session
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import (
    Running,
    RunningProducer,
    producing,
    settings_of,
    wait_caught_up,
)
from tests.program_starter import start_program
from tests.resharding.accounts import resharder_of
from tests.resharding.writers import make_tables, vindexes_of
from tests.waiting import COSTLY_POLL_S, WAIT_S, wait_for
from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import read_tail
from topics.keyspace.topology import TableVindex
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.schemas import open_schema_ids
from topics.start.positions import resolve_start_of
from topics.start.start_forms import StartWord

NUMBERS = frozenset(
    ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "bit")
)
# One target is a merge and a split in one: it has all of one source and a part of the other.
TWO_SOURCES = ("-80", "80-")
ONE_TARGET = "40-"


@dataclass
class Sources:
    """Source shards with their producers, starting from empty logs."""

    kafka: ClientConfig
    keyspace: str
    databases: dict[str, DatabaseFixture]
    producers: dict[str, RunningProducer]

    def last_seqs(self) -> dict[str, int]:
        """Return the last seq of each log, once it has everything its server has executed."""
        return {shard: self.last_seq(shard) for shard in self.databases}

    def last_seq(self, shard: str) -> int:
        wait_caught_up(self.producers[shard].settings)
        last = read_tail(self.kafka, ShardTopics(self.keyspace, shard).progress).last
        assert last is not None
        return decode_progress(last.value, open_schema_ids(self.kafka, None)).last_seq

    def plan(
        self, targets: tuple[str, ...], tables: tuple[TableVindex, ...], **changes: Any
    ) -> ReshardPlan:
        """Return a plan that starts at the beginning of the logs."""
        start = resolve_start_of(
            StartWord.EARLIEST,
            config=self.kafka,
            keyspace=self.keyspace,
            shards=list(self.databases),
            schema_ids=open_schema_ids(self.kafka, None),
        )
        fields: dict[str, Any] = {
            "reshard_id": f"r-{self.keyspace}",
            "keyspace": self.keyspace,
            "sources": tuple(self.databases),
            "targets": targets,
            "tables": tables,
            "start": start.to_string(),
            "agreed_seqs": dict.fromkeys(self.databases, 0),
            **changes,
        }
        return ReshardPlan(**fields)


def fresh_schema() -> str:
    """Return a schema name that no other test uses."""
    return f"db_{secrets.token_hex(4)}"


def applier_settings(
    plan: ReshardPlan, shard: str, database: DatabaseFixture, sources: Sources, *accepted: str
) -> ApplierSettings:
    """Return the settings of a target's applier; `accepted`: GTIDs of DDL statements."""
    return ApplierSettings(
        plan, resharder_of(database, shard), sources.kafka, accepted_ddl=frozenset(accepted)
    )


@contextmanager
def sources_of(
    databases: dict[str, DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> Iterator[Sources]:
    """Yield producers of the shards, started at the servers' current positions."""
    with ExitStack() as stack:
        producers = {
            shard: stack.enter_context(producing(settings_of(d, kafka, keyspace, shard=shard)))
            for shard, d in databases.items()
        }
        config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
        yield Sources(config, keyspace, databases, producers)


def begin(plan: ReshardPlan, targets: dict[str, DatabaseFixture]) -> None:
    """Write the plan and its checkpoints on the targets."""
    for shard, database in targets.items():
        with open_session(resharder_of(database, shard)) as connection:
            create_internal_tables(connection)
            write_plan(connection, plan)


def begin_with_tables(
    sources: Sources, targets: dict[str, DatabaseFixture]
) -> tuple[str, ReshardPlan]:
    """Create the writers' tables on all servers, and begin; return the schema and the plan."""
    schema = fresh_schema()
    for database in [*sources.databases.values(), *targets.values()]:
        make_tables(database, schema)
    plan = sources.plan(tuple(targets), vindexes_of(schema), agreed_seqs=sources.last_seqs())
    begin(plan, targets)
    return schema, plan


def copy_definitions(database: str, source: DatabaseFixture, target: DatabaseFixture) -> list[str]:
    """Create the tables of a database on a target; return their names."""
    with source.connect(database=database) as reader, target.connect() as writer:
        cursor, made = reader.cursor(), writer.cursor()
        made.execute(f"CREATE DATABASE `{database}`")
        made.execute(f"USE `{database}`")
        made.execute("SET sql_mode = 'ALLOW_INVALID_DATES', foreign_key_checks = 0")
        cursor.execute("SHOW FULL TABLES WHERE Table_type = 'BASE TABLE'")
        names = [row[0] for row in cursor.fetchall()]
        for name in names:
            quoted = name.replace("`", "``")
            cursor.execute(f"SHOW CREATE TABLE `{quoted}`")
            [(_, statement)] = cursor.fetchall()
            made.execute(statement)
    return names


class RunningApplier(Running):
    """`run_applier` in a thread, with the statuses it reported."""

    def __init__(self, settings: ApplierSettings) -> None:
        self.settings = settings
        self.statuses: list[ApplierStatus] = []
        super().__init__(
            "the applier", lambda stop: run_applier(settings, stop, self.statuses.append)
        )


@contextmanager
def applying(settings: ApplierSettings) -> Iterator[RunningApplier]:
    """Yield a running applier; stop it at the end and raise its error."""
    applier = RunningApplier(settings)
    try:
        yield applier
    finally:
        applier.end()


class ApplierProcess:
    """`run_applier` in a separate process, to be killed."""

    def __init__(self, settings: ApplierSettings) -> None:
        target = settings.target
        told = {
            "plan": settings.plan.to_json(),
            "target": [target.host, target.port, target.user, target.password],
            "shard": [target.shard, target.flavor.value],
            "kafka": dict(settings.kafka),
        }
        with TemporaryFile() as given:
            given.write(json.dumps(told).encode())
            given.seek(0)
            shown = sys.__stderr__
            assert shown is not None
            module = "tests.resharding.apply.apply_one"
            self._process = start_program(module, (), shown, shown, given)

    @property
    def runs(self) -> bool:
        """Whether it is still running."""
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(WAIT_S)


def checkpoint_seqs(database: DatabaseFixture, reshard_id: str) -> dict[str, int]:
    """Return a target's checkpoints."""
    with database.connect() as connection:
        return {s: at.seq for s, at in read_checkpoints(connection, reshard_id).items()}


def wait_applied(
    sources: Sources,
    reshard_id: str,
    targets: dict[str, DatabaseFixture],
    appliers: list[RunningApplier] | None = None,
) -> None:
    """Wait until each target has everything that the sources' servers have executed by now."""
    wanted = sources.last_seqs()

    def reached() -> bool:
        for applier in appliers or []:
            applier.check()
        return all(
            checkpoint_seqs(database, reshard_id)[shard] >= seq
            for database in targets.values()
            for shard, seq in wanted.items()
        )

    wait_for(f"the targets have {wanted}", reached, poll_s=COSTLY_POLL_S)


def table_contents(database: DatabaseFixture, schema: str, table: str) -> list[str]:
    """Return all rows as stored bytes, ENUMs also by index, in a fixed order."""
    with database.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(
            "SELECT column_name, data_type FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            (schema, table),
        )
        columns = []
        for name, kind in cursor.fetchall():
            quoted = "`" + name.replace("`", "``") + "`"
            # The stored bytes, whatever their character set.
            columns.append(quoted if kind in NUMBERS else f"HEX({quoted})")
            if kind in {"enum", "set", "float", "double"}:
                columns.append(f"{quoted} + 0.0e0")
        quoted = table.replace("`", "``")
        cursor.execute(f"SELECT {', '.join(columns)} FROM `{quoted}`")
        return sorted(map(repr, cursor.fetchall()))


def waits_for_lock(database: DatabaseFixture) -> bool:
    """Whether a transaction waits for a row.

    Not by `innodb_trx`: InnoDB answers from its last look while less than 0.1 s lie between.
    """
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
        [(_, count)] = cursor.fetchall()
    return bool(int(count))
