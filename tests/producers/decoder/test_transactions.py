"""Where transactions begin and end, and the ways in which a binlog can be unusual."""

import pytest

from event_token import Flavor
from producers.decoder import CorruptBinlog, RolledBack, UnsupportedEvent
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.decoder.binlog_events import MYSQL_GTID, XID, kind_of, query
from tests.producers.decoder.capture import capture, executed_set, packets_of, run_statements
from tests.producers.decoder.decoding import ALL_ROWS, Sink, decode, new_decoder


@pytest.fixture
def one_row(database: DatabaseFixture) -> tuple[Flavor, str, list[bytes]]:
    """The packets of a table and one row in it."""
    return _one_row(database)


def _one_row(database: DatabaseFixture) -> tuple[Flavor, str, list[bytes]]:
    before = executed_set(database)
    run_statements(
        database,
        database.new_database(),
        ("CREATE TABLE t(id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"),
    )
    return database.flavor, before, packets_of(capture(database, before))


def test_tagged_gtids(mysql_a: DatabaseFixture) -> None:
    """F20: A tag stands in gtid and position, and the position is the server's own."""
    before = executed_set(mysql_a)
    run_statements(
        mysql_a,
        mysql_a.new_database(),
        (
            "CREATE TABLE t(id INT PRIMARY KEY)",
            "SET gtid_next='AUTOMATIC:blue'",
            "INSERT INTO t VALUES (1)",
            "INSERT INTO t VALUES (2)",
            "SET gtid_next='AUTOMATIC'",
            "INSERT INTO t VALUES (3)",
        ),
    )
    sink, summary = decode(capture(mysql_a, before), Flavor.MYSQL, before)
    tags = [e.gtid.split(":")[1:-1] for e in sink.events()]

    assert tags == [[], [], ["blue"], ["blue"], []]
    assert summary.position == executed_set(mysql_a)
    times = [e.commit_us for e in sink.events()]
    assert times == sorted(times)


def test_gaps_and_foreign_servers(mysql_a: DatabaseFixture) -> None:
    """GTIDs of another server, out of order, come out as the server's own set."""
    before = executed_set(mysql_a)
    other = "11111111-2222-3333-4444-555555555555"
    statements = ["CREATE TABLE t(id INT PRIMARY KEY)"]
    for row, number in enumerate((7, 3, 4, 9)):
        statements += [f"SET gtid_next='{other}:{number}'", f"INSERT INTO t VALUES ({row})"]
    statements += [f"SET gtid_next='{other}:5'", "COMMIT", "SET gtid_next='AUTOMATIC'"]
    run_statements(mysql_a, mysql_a.new_database(), tuple(statements))

    sink, summary = decode(capture(mysql_a, before), Flavor.MYSQL, before)

    assert summary.position == executed_set(mysql_a)
    assert f"{other}:3-5:7:9" in summary.position
    assert summary.transactions == len(sink.events()) + 1  # the empty one


def test_many_domains(start_mariadb: StartServer) -> None:
    """MariaDB's domains stand side by side in the position."""
    database = start_mariadb()  # a server never loses a domain, and tests of others want one
    run_statements(database, database.new_database(), ("CREATE TABLE u(id INT PRIMARY KEY)",))
    before = executed_set(database)
    statements = ["CREATE TABLE t(id INT PRIMARY KEY)"]
    for row, domain in enumerate((0, 7, 3, 7, 0)):
        statements += [f"SET gtid_domain_id={domain}", f"INSERT INTO t VALUES ({row})"]
    run_statements(database, database.new_database(), tuple(statements))

    _, summary = decode(capture(database, before), Flavor.MARIADB, before)

    reached = set(summary.position.split(","))
    assert reached == set(executed_set(database).split(","))
    assert summary.gtid.startswith("0-")
    *_, third, seventh = [gtid for gtid, *_ in summary.left]
    assert {third, seventh, summary.gtid} == reached
    assert all(at_us > 0 and name and pos > 0 for _, at_us, name, pos in summary.left)


def test_intervals_of_a_batch(mysql_a: DatabaseFixture) -> None:
    """The last transaction of each interval and source is told, with its place."""
    before = executed_set(mysql_a)
    name, other = mysql_a.new_database(), "bbbbbbbb-0000-0000-0000-00000000000b"
    statements = ["CREATE TABLE t(id INT PRIMARY KEY)"]
    for row, number in enumerate((1, 2, 5)):
        statements += [f"SET gtid_next='{other}:{number}'", f"INSERT INTO t VALUES ({row})"]
    statements += ["SET gtid_next='AUTOMATIC'", "INSERT INTO t VALUES (9)"]
    run_statements(mysql_a, name, tuple(statements))

    _, summary = decode(capture(mysql_a, before), Flavor.MYSQL, before)

    left = [gtid for gtid, *_ in summary.left]
    assert left[-2:] == [f"{other}:2", f"{other}:5"]
    assert not any(gtid == f"{other}:1" for gtid in left)


def test_a_rotation_in_the_stream(database: DatabaseFixture) -> None:
    """A new file, with new table ids, changes nothing but the place named."""
    before = executed_set(database)
    run_statements(
        database,
        database.new_database(),
        (
            "CREATE TABLE t(id INT PRIMARY KEY)",
            "INSERT INTO t VALUES (1)",
            "FLUSH BINARY LOGS",
            "INSERT INTO t VALUES (2)",
            "FLUSH TABLES",
            "INSERT INTO t VALUES (3)",
        ),
    )
    sink, summary = decode(capture(database, before), database.flavor, before)
    rows = [e.after["id"] for e in sink.events() if e.after is not None]

    assert rows == [1, 2, 3]
    assert len(sink.schema_ids.texts) == 2  # the table's and DDL's
    assert summary.binlog_file.startswith("binlog.")
    assert summary.binlog_pos > 0


def test_rollback_behind_rows_is_refused(mysql_a: DatabaseFixture) -> None:
    """MySQL never logs ROLLBACK, or ROLLBACK TO, after rows: nobody knows which stayed."""
    flavor, before, packets = _one_row(mysql_a)
    for statement in (b"ROLLBACK", b"ROLLBACK TO `a`"):
        changed = [query(statement) if kind_of(p) == XID else p for p in packets]
        stream = b"".join(changed)
        with pytest.raises(UnsupportedEvent, match="which rows stayed"):
            decode(stream, flavor, before)


ROLLED_BACK = (
    "CREATE TABLE t(id INT PRIMARY KEY)",
    "CREATE TABLE m(id INT PRIMARY KEY) ENGINE=MyISAM",
    # ROLLBACK is logged after rows.
    "BEGIN",
    "INSERT INTO t VALUES (1), (2)",
    "CREATE TEMPORARY TABLE x(a INT)",
    "INSERT INTO t VALUES (3)",
    "ROLLBACK",
    "INSERT INTO t VALUES (4)",
    "BEGIN",
    "INSERT INTO t VALUES (5)",
    "DROP TEMPORARY TABLE x",
    "ROLLBACK",
    # ROLLBACK TO is logged, beside a table that cannot be rolled back and a temporary one.
    "BEGIN",
    "INSERT INTO t VALUES (6)",
    "SAVEPOINT a",
    "INSERT INTO t VALUES (7)",
    "INSERT INTO m VALUES (8)",
    "SAVEPOINT `B b`",
    "INSERT INTO t VALUES (9)",
    "ROLLBACK TO a",
    "INSERT INTO t VALUES (10)",
    "SAVEPOINT c",
    "UPDATE t SET id = 11 WHERE id = 10",
    "COMMIT",
    "BEGIN",
    "SAVEPOINT a",
    "INSERT INTO t VALUES (12)",
    "CREATE TEMPORARY TABLE y(a INT)",
    "ROLLBACK",
    "INSERT INTO t VALUES (13)",
)


@pytest.mark.parametrize("compressed", ["OFF", "ON"])
def test_what_mariadb_rolls_back_is_dropped(mariadb_a: DatabaseFixture, compressed: str) -> None:
    """B1: rows before a logged ROLLBACK are not logged, nor those after a savepoint it goes to."""
    before = executed_set(mariadb_a)
    name = mariadb_a.new_database()
    with mariadb_a.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SET GLOBAL log_bin_compress = {compressed}")
        cursor.execute("SET GLOBAL log_bin_compress_min_len = 10")
    try:
        run_statements(mariadb_a, name, ROLLED_BACK)
    finally:
        with mariadb_a.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET GLOBAL log_bin_compress = OFF")
    stream = capture(mariadb_a, before)

    rolled_back: set[str] = set()
    while len(rolled_back) < 10:
        try:
            sink, summary = decode(
                stream, Flavor.MARIADB, before, rolled_back=frozenset(rolled_back)
            )
        except RolledBack as error:
            rolled_back.add(error.gtid)
        else:
            break

    assert len(rolled_back) == 3
    events = sink.events()
    rows = [(e.op.value, e.before, e.after) for e in events if e.shape is not None]
    assert rows == [
        ("INSERT", None, {"id": 4}),
        ("INSERT", None, {"id": 8}),
        ("INSERT", None, {"id": 6}),
        ("INSERT", None, {"id": 10}),
        ("UPDATE", {"id": 10}, {"id": 11}),
        ("INSERT", None, {"id": 13}),
    ]
    assert [(e.row_index, e.last) for e in events[-4:]] == [
        (0, False),
        (1, False),
        (2, True),
        (0, True),
    ]
    assert summary.position == executed_set(mariadb_a)
    with mariadb_a.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM t UNION ALL SELECT id FROM m ORDER BY id")
        assert [row[0] for row in cursor.fetchall()] == [4, 6, 8, 11, 13]


def test_rollback_without_rows_ends_the_transaction(
    one_row: tuple[Flavor, str, list[bytes]],
) -> None:
    """A transaction that only rolled back counts as executed and adds nothing."""
    flavor, before, packets = one_row
    without_rows = [p for p in packets if kind_of(p) not in (19, 23, 30)]
    stream = b"".join(query(b"ROLLBACK") if kind_of(p) == XID else p for p in without_rows)
    sink, summary = decode(stream, flavor, before)

    assert [e.op.value for e in sink.events()] == ["NONE", "NONE"]
    assert summary.transactions == 3


@pytest.mark.parametrize(
    ("statement", "is_ddl"),
    [
        (b"/* hint */ CREATE TABLE a(b INT)", True),
        (b"-- note\n# more\n  alter table a add c int", True),
        (b"/*!40000 DROP TABLE a */", True),
        (b"TRUNCATE a", True),
        (b"SET PASSWORD FOR x='y'", False),
        (b"GRANT ALL ON *.* TO x", False),
        (b"SET STATEMENT lock_wait_timeout=1 FOR ALTER TABLE a COMMENT 'x FOR INSERT'", True),
        (b"CREATE TABLE `select`(`a select` INT COMMENT 'as select' /* select */)", True),
        (b"CREATE VIEW v AS SELECT 1", True),
        (b"ANALYZE TABLE a", True),
        (b"# Dummy event replacing event type 160 that slave cannot handle.", False),
    ],
)
def test_statements_on_the_list(
    one_row: tuple[Flavor, str, list[bytes]], statement: bytes, is_ddl: bool
) -> None:
    """Definitions become DDL records whatever stands before their first word."""
    flavor, before, packets = one_row
    first_gtid = next(i for i, p in enumerate(packets) if kind_of(p) in (MYSQL_GTID, 162))
    stream = b"".join([*packets[: first_gtid + 1], query(statement)])
    sink, summary = decode(stream, flavor, before)

    assert [e.statement for e in sink.events()] == ([statement.decode()] if is_ddl else [])
    assert summary.transactions == 1


@pytest.mark.parametrize(
    "statement",
    [
        b"insert into t values (1)",
        b"/* x */ UPDATE t SET a=1",
        b"(SELECT 1)",
        b"SET STATEMENT lock_wait_timeout=1 FOR INSERT INTO t VALUES (1)",
        b"SET GLOBAL x=1",
        b"ANALYZE FORMAT=JSON UPDATE t SET a=1",
        b"CREATE TABLE a SELECT * FROM b",
        b"create or replace table a (b int) as (select 1)",
        b"CREATE TABLE a AS TABLE b",
        b"WITH a AS (SELECT 1) DELETE FROM t",
        b"XA COMMIT 'x'",
        b"FROBNICATE t",
        b"",
    ],
)
def test_statements_off_the_list(
    one_row: tuple[Flavor, str, list[bytes]], statement: bytes
) -> None:
    """Changes logged as statements, and unknown words, stop the shard."""
    flavor, before, packets = one_row
    first_gtid = next(i for i, p in enumerate(packets) if kind_of(p) in (MYSQL_GTID, 162))
    stream = b"".join([*packets[: first_gtid + 1], query(statement)])
    with pytest.raises(UnsupportedEvent.__mro__[1]):
        decode(stream, flavor, before)


def test_events_out_of_place(one_row: tuple[Flavor, str, list[bytes]]) -> None:
    """Rows without a GTID, a GTID in a transaction, a new file in one: each stops the shard."""
    flavor, before, packets = one_row
    gtids = [i for i, p in enumerate(packets) if kind_of(p) in (MYSQL_GTID, 162)]
    without_gtid = [*packets[: gtids[-1]], *packets[gtids[-1] + 1 :]]
    twice = [*packets[: gtids[-1] + 1], *packets[gtids[-1] :]]
    ends_inside = [*packets[: gtids[-1] + 1], packets[0]]
    begins_inside = [*packets[: gtids[-1] + 1], packets[1]]

    for packets_now in (without_gtid, twice, ends_inside, begins_inside):
        with pytest.raises((CorruptBinlog, UnsupportedEvent)):
            decode(b"".join(packets_now), flavor, before)


def test_the_other_family_is_refused(one_row: tuple[Flavor, str, list[bytes]]) -> None:
    """A server of the other family than the settings say stops the shard at its first GTID."""
    flavor, _, packets = one_row
    other = Flavor.MARIADB if flavor is Flavor.MYSQL else Flavor.MYSQL
    with pytest.raises(UnsupportedEvent, match="set up as"):
        decode(b"".join(packets), other, "")


def test_errors_say_where(one_row: tuple[Flavor, str, list[bytes]]) -> None:
    """Shard, GTID and binlog place stand in the message."""
    flavor, before, packets = one_row
    broken = bytearray(packets[-1])
    broken[-1] ^= 0xFF
    sink = Sink()
    decoder = new_decoder(sink, flavor, before)
    stream = b"".join([*packets[:-1], bytes(broken)])
    with pytest.raises(CorruptBinlog) as caught:
        decoder.feed(stream, 0, len(stream), ALL_ROWS)

    *_, gtid = [e.gtid for e in sink.events()] or [""]
    message = str(caught.value)
    assert message.startswith("shard -80, in transaction ")
    assert "binlog binlog." in message
    assert gtid.rpartition("-")[0].rpartition(":")[0] in message
