"""Declared types in a running producer: at start, in stream and copy, for a later table."""

from databases.errors import ServerRefused
from producers.decoder import HiddenType
from producers.filters.rules import FilterSettings, TablePattern
from producers.preflight import shard_findings
from producers.typed_columns import TypedColumns
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.copy.copying import start, wait_state
from tests.producers.session.producing import RunningProducer, read_log, settings_of, wait_caught_up
from topics.progress.copy_topic import CopyState
from topics.records.vevent import EventType, Op


def run(database: DatabaseFixture, name: str, *statements: str) -> None:
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_undeclared_columns_are_all_listed(
    mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """B24: start and preflight name exactly the logged columns declared wrongly or not at all."""
    name = mariadb_a.new_database()
    run(
        mariadb_a,
        name,
        "CREATE TABLE users(id UUID PRIMARY KEY, seen INET6, old BINARY(16), good UUID, raw INET6)",
        "CREATE TABLE hits(ip INET4, wrong INET6, u BINARY(16), n INT)",
        "CREATE TABLE versions(u UUID) WITH SYSTEM VERSIONING",
        "CREATE TABLE out_of_it(u UUID)",
        "CREATE VIEW shown AS SELECT id FROM users",
    )
    typed = TypedColumns(
        {
            f"{name}.users.good": "uuid",
            f"{name}.users.raw": "bytes",
            f"{name}.hits.wrong": "uuid",
            f"{name}.hits.u": "uuid",
            f"{name}.hits.n": "bytes",
            f"{name}.later.u": "uuid",
            f"{name}.out_of_it.u": "inet4",
        }
    )
    filters = FilterSettings(
        include=(TablePattern(rf"/{name}\..*/"),), exclude=(TablePattern(f"{name}.out_of_it"),)
    )
    settings = settings_of(mariadb_a, kafka, keyspace, typed_columns=typed, filters=filters)

    found = shard_findings(settings).problems
    error = RunningProducer(settings).wait_error()

    assert isinstance(error, ServerRefused)
    assert all(problem.what in str(error) for problem in found)
    whats = sorted(problem.what.replace(name, "db") for problem in found)
    shown = "which a binlog shows as"
    assert whats == [
        f"column db.hits.ip is inet4, {shown} binary(4), and not declared in typed_columns",
        f"column db.hits.wrong is inet6, {shown} binary(16), and declared as uuid in typed_columns",
        f"column db.users.id is uuid, {shown} binary(16), and not declared in typed_columns",
        f"column db.users.seen is inet6, {shown} binary(16), and not declared in typed_columns",
        f"column db.versions.u is uuid, {shown} binary(16), and not declared in typed_columns",
        "typed_columns declares db.hits.n as bytes, but it is int(11)",
        "typed_columns declares db.hits.u as uuid, but it is binary(16)",
    ]
    [fix] = [p.fix for p in found if ".users.id is" in p.what]
    assert fix == f'"{name}.users.id" = "uuid" (or "bytes") under [producer.typed_columns]'


def test_copied_and_logged_rows_agree_and_a_later_table_stops(
    mariadb_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """B24: copied rows have the logged rows' values; an undeclared new table stops the shard."""
    name = mariadb_a.new_database()
    run(
        mariadb_a,
        name,
        "CREATE TABLE old(u UUID PRIMARY KEY, a INET4, b INET6)",
        "CREATE TABLE log LIKE old",
        "INSERT INTO old VALUES ('00000001-0000-1000-8000-ffffffffffff', '1.0.0.0', '::'), "
        "('01900000-0000-7000-8000-00000000000a', NULL, '::ffff:1.2.3.4'), "
        "('a0000001-0000-4000-8000-0fffffffffff', '9.9.9.9', 'a::b')",
    )
    columns = {"u": "uuid", "a": "inet4", "b": "inet6"}
    typed = TypedColumns(
        {f"{name}.{t}.{c}": kind for t in ("old", "log") for c, kind in columns.items()}
    )
    filters = FilterSettings(include=(TablePattern(rf"/{name}\..*/"),))
    settings = settings_of(mariadb_a, kafka, keyspace, typed_columns=typed, filters=filters)
    producer = RunningProducer(settings)
    producer.wait_streaming()
    start(settings, f"{name}.old")
    wait_state(settings, CopyState.COMPLETED, f"{name}.old")
    run(mariadb_a, name, "INSERT INTO log SELECT * FROM old")
    wait_caught_up(settings)
    run(mariadb_a, name, "CREATE TABLE later(id INT, u UUID)", "INSERT INTO later VALUES (1, NULL)")
    error = producer.wait_error()

    assert isinstance(error, HiddenType)
    for said in ("in transaction", "binlog", f'"{name}.later.u" = "uuid"'):
        assert said in str(error)
    events = [e for e in read_log(settings).events if e.type is EventType.ROW]
    copied = [e.after for e in events if e.op is Op.READ]
    logged = [e.after for e in events if e.op is Op.INSERT]
    with mariadb_a.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM old ORDER BY u")
        selected = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
    assert copied == selected
    assert sorted(map(str, logged)) == sorted(map(str, selected))
