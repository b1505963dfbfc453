"""A split ready to switch: one source, two targets, producers, appliers, an application."""

import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pymysql

from databases.internal_tables import create_internal_tables
from event_token import StreamPosition
from resharding.apply.applier import ApplierSettings
from resharding.bookkeeping import ReshardPlan, write_roles
from resharding.servers import open_session
from resharding.switch.shard_writes import SwitchSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import RunningProducer, producing, settings_of
from tests.resharding.accounts import resharder_of
from tests.resharding.shards import Sources, applying, begin, sources_of, wait_applied
from tests.waiting import wait_for
from topics.kafka.errors import Fenced
from topics.kafka.partition_reader import read_to_end
from topics.kafka.provisioning import provision_keyspace
from topics.kafka.topic_settings import TopicSettings
from topics.keyspace.topology import (
    ReshardEntry,
    ReshardState,
    ShardEntry,
    ShardState,
    TableVindex,
    Topology,
    update_topology,
)
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.progress.record import Progress
from topics.schemas import open_schema_ids

SOURCE = "-"
# Two that fire in another order than that of their names, and that the application owns.
TRIGGERS = (
    "TRIGGER {schema}.tr_2 BEFORE INSERT ON {schema}.t FOR EACH ROW SET @seen = NEW.id",
    "TRIGGER {schema}.tr_1 BEFORE INSERT ON {schema}.t FOR EACH ROW SET @seen = @seen + 1",
)
TARGETS = ("-80", "80-")
APP = "shop"
APP_PASSWORD = "x-9-z"


def make_account(database: DatabaseFixture, *, locked: bool) -> None:
    """Create the application's account, with all privileges on rows."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP USER IF EXISTS '{APP}'@'%'")
        lock = "LOCK" if locked else "UNLOCK"
        cursor.execute(f"CREATE USER '{APP}'@'%' IDENTIFIED BY '{APP_PASSWORD}' ACCOUNT {lock}")
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE, TRIGGER ON *.* TO '{APP}'@'%'")


def app_session(database: DatabaseFixture) -> Any:
    """Open a session of the application; OperationalError if it is locked out."""
    return pymysql.connect(
        host=database.host,
        port=database.port,
        user=APP,
        password=APP_PASSWORD,
        autocommit=True,
        connect_timeout=120,  # a server that is busy is not one that locks out
    )


def lets_in(database: DatabaseFixture) -> bool:
    """Whether the application can connect."""
    try:
        app_session(database).close()
    except pymysql.err.OperationalError:
        return False
    return True


@dataclass
class Switchable:
    """The parts of one reshard. `servers`: by shard; `producers`: those of the targets."""

    settings: SwitchSettings
    servers: dict[str, DatabaseFixture]
    sources: Sources
    plan: ReshardPlan
    schema: str
    producers: dict[str, RunningProducer]

    def open_shards(self) -> set[str]:
        """Return the shards to which the application can connect now."""
        return {shard for shard, server in self.servers.items() if lets_in(server)}

    def progress(self, shard: str) -> list[Progress]:
        """Return the progress records of a shard."""
        config = self.settings.kafka
        schema_ids = open_schema_ids(config, None)
        topic = ShardTopics(self.settings.keyspace, shard).progress
        return [decode_progress(r.value, schema_ids) for r in read_to_end(config, topic)]

    def ids(self, shard: str) -> list[int]:
        """Return the rows on a server."""
        with self.servers[shard].connect(database=self.schema) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT id FROM t ORDER BY id")
            return [row[0] for row in cursor.fetchall()]

    def wait_applied(self) -> None:
        """Wait until the targets have everything the source has now."""
        targets = {shard: self.servers[shard] for shard in self.plan.targets}
        wait_applied(self.sources, self.plan.reshard_id, targets)

    def trust_function_creators(self, shards: Iterable[str], *, on: bool) -> None:
        """Whether an account without SUPER may create triggers there."""
        for shard in shards:
            with self.servers[shard].connect() as connection, connection.cursor() as cursor:
                cursor.execute("SET GLOBAL log_bin_trust_function_creators = %s", (int(on),))

    def verified(self, differing: int, *, age_s: float = 0, ahead: int = 0) -> None:
        """Store a verify result on the targets: how old it is, and by how much it is ahead."""
        at_us = round((time.time() - age_s) * 1e6)
        start = StreamPosition.from_string(self.plan.start)
        at = replace(
            start, shards={s: replace(p, seq=p.seq + ahead) for s, p in start.shards.items()}
        )
        for shard in self.plan.targets:
            with self.servers[shard].connect() as connection, connection.cursor() as cursor:
                cursor.execute(
                    "REPLACE INTO _shardstream.verified VALUES (%s, %s, %s, %s)",
                    (self.plan.reshard_id, at.to_string(), at_us, differing),
                )


@contextmanager
def split(
    servers: list[DatabaseFixture],
    kafka: KafkaCluster,
    keyspace: str,
    *,
    appliers: bool = True,
    from_shards: tuple[str, ...] = (SOURCE,),
    to_shards: tuple[str, ...] = TARGETS,
    columns: str = "id BIGINT PRIMARY KEY",
    sharded_by: str = "id",
) -> Iterator[Switchable]:
    """Yield a split in progress, not yet verified, with a hundred users on each source.

    `columns`: of its table, which begins empty if it has more than users.
    """
    by_shard = dict(zip((*from_shards, *to_shards), servers, strict=True))
    schema = f"db_{secrets.token_hex(4)}"
    targets = {shard: by_shard[shard] for shard in to_shards}
    vindexes = (TableVindex(schema, "t", (sharded_by,), "hash"),)
    with ExitStack() as stack:
        sources = stack.enter_context(
            sources_of({shard: by_shard[shard] for shard in from_shards}, kafka, keyspace)
        )
        producers = {
            shard: stack.enter_context(_producing_until_fenced(database, kafka, keyspace, shard))
            for shard, database in targets.items()
        }
        for shard, database in by_shard.items():
            _make_shard(database, schema, columns, serves=shard in from_shards)
            stack.callback(_forget_account, database)
        plan = sources.plan(to_shards, vindexes, agreed_seqs=sources.last_seqs())
        begin(plan, targets)
        for shard, database in by_shard.items():
            with open_session(resharder_of(database, shard)) as connection:
                write_roles(connection, plan)
        provision_keyspace(sources.kafka, keyspace, TopicSettings())
        update_topology(sources.kafka, keyspace, lambda _: _topology(plan, vindexes))
        if appliers:
            for shard, database in targets.items():
                admin = resharder_of(database, shard)
                stack.enter_context(applying(ApplierSettings(plan, admin, sources.kafka)))
        for number, shard in enumerate(from_shards if sharded_by == "id" else ()):
            ids = range(number, 100 * len(from_shards), len(from_shards))
            with app_session(by_shard[shard]) as session, session.cursor() as cursor:
                cursor.execute(f"INSERT INTO {schema}.t VALUES " + ", ".join(f"({i})" for i in ids))
        settings = SwitchSettings(
            plan.reshard_id,
            keyspace,
            lambda shard: resharder_of(by_shard[shard], shard),
            (f"{APP}@%",),
            sources.kafka,
        )
        yield Switchable(settings, by_shard, sources, plan, schema, producers)


@contextmanager
def _producing_until_fenced(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str, shard: str
) -> Iterator[RunningProducer]:
    """Run the producer of a target; a cancel may take the log from it."""
    with producing(settings_of(database, kafka, keyspace, shard=shard)) as producer:
        yield producer
        producer.stop.set()
        wait_for("the producer has ended", lambda: not producer.runs)
        if isinstance(producer.error, Fenced):
            producer.error = None


def _make_shard(database: DatabaseFixture, schema: str, columns: str, *, serves: bool) -> None:
    """Create the table, the application's account, and the triggers of a shard that serves."""
    make_account(database, locked=not serves)
    with database.connect() as connection, connection.cursor() as cursor:
        create_internal_tables(connection)
        cursor.execute(f"CREATE DATABASE {schema}")
        cursor.execute(f"CREATE TABLE {schema}.t ({columns})")
        cursor.execute("SET GLOBAL log_bin_trust_function_creators = ON")
        for trigger in TRIGGERS if serves else ():
            cursor.execute(f"CREATE DEFINER = {APP}@'%' {trigger.format(schema=schema)}")


def _topology(plan: ReshardPlan, vindexes: tuple[TableVindex, ...]) -> Topology:
    serving = Topology(plan.keyspace, 0, tuple(map(ShardEntry, plan.sources)), vindexes)
    entry = ReshardEntry(plan.reshard_id, plan.sources, plan.targets, ReshardState.RUNNING.value)
    targets = tuple(ShardEntry(shard, ShardState.TARGET) for shard in plan.targets)
    return replace(serving, shards=(*serving.shards, *targets), reshards=(entry,))


def _forget_account(database: DatabaseFixture) -> None:
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP USER IF EXISTS '{APP}'@'%'")
