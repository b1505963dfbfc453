"""Many tables: a start on a database of thousands, and thousands that are created in the stream."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from benchmarks import debezium
from benchmarks.binlog_fill import DATABASE, executed_set
from benchmarks.costs.cold_start import ALL, first_commit
from benchmarks.debezium import Debezium, Endpoints
from benchmarks.figures import Figure, Sample, Turn, figure
from benchmarks.our_producer import BenchKeyspace, OurProducer
from benchmarks.stack import Stack
from benchmarks.watch import TopicEnd, create_topic, sample_until
from shardstream.local.database_server import MysqlServer
from topics.kafka.client import ClientConfig, open_admin

START: Final = "tables.start"
CREATED: Final = "tables.created"
NAMES: Final = (START, CREATED)
TABLES: Final = 5_000
TABLES_QUICK: Final = 1_000
NEW_TABLES: Final = 1_000
NEW_TABLES_QUICK: Final = 300
WRITERS: Final = 8
# A table's DDL and its first row.
RECORDS_PER_TABLE: Final = 2
METADATA_S_MAX: Final = 30.0
_COLUMNS: Final = (
    "id BIGINT NOT NULL PRIMARY KEY, customer INT NOT NULL, title VARCHAR(64), "
    "amount DECIMAL(12,2), state ENUM('new', 'paid'), created DATETIME(3)"
)
_INSERT: Final = "INSERT INTO {table} VALUES ({id}, 7, 'a title', 1.23, 'new', NOW(3))"


def run(stack: Stack, names: tuple[str, ...], *, runs: int, quick: bool) -> list[Figure]:
    """Measure once: new tables are new only once to the peer."""
    del runs
    server = stack.mysql(0)
    tables = TABLES_QUICK if quick else TABLES
    stack.report(f"{START}: making {tables:,} tables")
    _make_tables(server, tables)
    peer = Debezium(
        stack.folder / "debezium-tables",
        Endpoints(server, stack.kafka().bootstrap_servers),
        report=stack.report,
    )
    # The peer's first start is also what makes it know the tables, and have an offset.
    started = _start(stack, server, peer)
    figures = []
    if START in names:
        figures.append(figure(START, "s to the first row", [started], peer=debezium.PEER))
    if CREATED in names:
        figures += _created(stack, server, peer, NEW_TABLES_QUICK if quick else NEW_TABLES)
    return figures


def _make_tables(server: MysqlServer, count: int) -> None:
    def make(writer: int) -> None:
        with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
            for number in range(writer, count, WRITERS):
                cursor.execute(f"CREATE TABLE many_{number} ({_COLUMNS})")

    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(make, range(WRITERS)))


def _insert(server: MysqlServer, table: str, number: int) -> None:
    with (
        server.connect(database=DATABASE, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(_INSERT.format(table=table, id=number))


def _start(stack: Stack, server: MysqlServer, peer: Debezium) -> Turn:
    """Start both on a database with these tables; each ends when a reader sees a row."""
    brokers = stack.kafka().bootstrap_servers
    begin = executed_set(server)
    _insert(server, "many_0", 0)
    keyspace = BenchKeyspace(stack.folder, "manytables", brokers, {ALL: server})
    ours_s, _ = first_commit(keyspace, OurProducer(keyspace, ALL, start=f"gtid:{begin}"))
    stack.report(f"{START}: {debezium.PEER}, which reads the definitions")
    topic = debezium.topic_of("many_0")
    create_topic(keyspace.client, topic)
    end = TopicEnd(keyspace.client, topic)
    written = 0

    def seen() -> int:
        # Without a snapshot of rows it begins at the server's position: a row must follow that.
        nonlocal written
        written += 1
        _insert(server, "many_0", written)
        return end()

    begun_s = time.monotonic()
    peer.start()
    try:
        samples = sample_until(
            seen, lambda count: count > 0, cpu_s=peer.cpu_s, check_alive=peer.check_alive
        )
        peer.stop()
    finally:
        peer.kill()
        end.close()
    return Turn(ours_s, samples[-1].at_s - begun_s)


def _created(stack: Stack, server: MysqlServer, peer: Debezium, count: int) -> list[Figure]:
    """Let both drain tables that are created one after the other, with a row each."""
    stack.report(f"{CREATED}: {count:,} tables, one after the other")
    begin = executed_set(server)
    with (
        server.connect(database=DATABASE, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        for number in range(count):
            cursor.execute(f"CREATE TABLE new_{number} ({_COLUMNS})")
            cursor.execute(_INSERT.format(table=f"new_{number}", id=number))
    ours = _drain(stack, server, begin, count)
    stack.report(f"{CREATED}: {debezium.PEER}")
    theirs = _drain_peer(stack, peer, count)
    return [
        figure(
            CREATED,
            "s, process start to committed",
            [Turn(ours.at_s, theirs.at_s)],
            peer=debezium.PEER,
        ),
        figure(
            f"{CREATED}.cpu",
            "processor s",
            [Turn(ours.cpu_s, theirs.cpu_s)],
            peer=debezium.PEER,
        ),
    ]


def _drain(stack: Stack, server: MysqlServer, begin: str, count: int) -> Sample:
    keyspace = BenchKeyspace(
        stack.folder, "newtables", stack.kafka().bootstrap_servers, {ALL: server}
    )
    producer = OurProducer(keyspace, ALL, start=f"gtid:{begin}")
    end = TopicEnd(keyspace.client, producer.topics.log)
    wanted = count * RECORDS_PER_TABLE
    begun_s = time.monotonic()
    producer.start()
    try:
        samples = sample_until(
            end,
            lambda offset: offset >= wanted and producer.last_seq() >= wanted,
            cpu_s=producer.cpu_s,
            check_alive=producer.check_alive,
        )
        producer.stop()
    finally:
        producer.kill()
        end.close()
    return replace(samples[-1], at_s=samples[-1].at_s - begun_s)


def _drain_peer(stack: Stack, peer: Debezium, count: int) -> Sample:
    """Count its topics: it creates one for each table, and then writes the row."""
    admin = open_admin(ClientConfig({"bootstrap.servers": stack.kafka().bootstrap_servers}))
    prefix = debezium.topic_of("new_")

    def created() -> int:
        found = admin.list_topics(timeout=METADATA_S_MAX).topics
        return sum(topic.startswith(prefix) for topic in found)

    begun_s = time.monotonic()
    peer.start()
    try:
        samples = sample_until(
            created,
            lambda topics: topics >= count,
            cpu_s=peer.cpu_s,
            check_alive=peer.check_alive,
        )
        peer.stop()
    finally:
        peer.kill()
    return replace(samples[-1], at_s=samples[-1].at_s - begun_s)
