"""Keys of records: database, table and primary key, in every kind of row image."""

from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.decoding import decode
from tests.topics.records.record_encoder import record_key


def avro_string(text: str) -> bytes:
    raw = text.encode()
    assert len(raw) < 64
    return bytes([len(raw) * 2]) + raw


def keys_of(database: DatabaseFixture, *statements: str) -> tuple[str, list[bytes]]:
    before = executed_set(database)
    name = database.new_database()
    run_statements(database, name, statements)
    sink, _ = decode(capture(database, before), database.flavor, before)
    shapes = [event.shape is not None for event in sink.events()]
    return name, [m.key for m, is_row in zip(sink.messages, shapes, strict=True) if is_row]


def test_keys_follow_the_codec(database: DatabaseFixture) -> None:
    """Keys are those that the codec computes: composite ones in key order, of the after image."""
    before = executed_set(database)
    name = database.new_database()
    run_statements(
        database,
        name,
        (
            "CREATE TABLE t(a INT, b VARCHAR(200), c BIGINT UNSIGNED, v INT, PRIMARY KEY(b, c, a))",
            "INSERT INTO t VALUES (1, 'x', 18446744073709551615, 1), (-5, REPEAT('y', 90), 0, 2)",
            "UPDATE t SET a = a + 100, b = CONCAT('new', b)",
            "DELETE FROM t",
            "CREATE TABLE n(a INT)",
            "INSERT INTO n VALUES (1)",
        ),
    )
    sink, _ = decode(capture(database, before), database.flavor, before)

    for message, event in zip(sink.messages, sink.events(), strict=True):
        assert message.key == record_key(event)


def test_a_changed_key_is_the_new_one(database: DatabaseFixture) -> None:
    """An update of the primary key is keyed by the new value."""
    name, keys = keys_of(
        database,
        "CREATE TABLE t(id INT PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "UPDATE t SET id = 2",
    )

    prefix = avro_string(name) + avro_string("t")
    assert keys == [prefix + b"\x02", prefix + b"\x04"]


def test_keys_behind_the_hidden_columns_of_functional_indexes(mysql_a: DatabaseFixture) -> None:
    """The binlog counts key columns without those that such indexes add, in whatever order."""
    name, keys = keys_of(
        mysql_a,
        "CREATE TABLE t(a INT, b VARCHAR(9), INDEX f ((a + 1)))",
        "ALTER TABLE t ADD COLUMN id INT, ADD PRIMARY KEY (id)",
        "INSERT INTO t (a, b, id) VALUES (3, 'three', 33)",
        "ALTER TABLE t ADD COLUMN c INT FIRST, ADD INDEX g ((a * 2)), ADD COLUMN k INT NOT NULL",
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (k, id)",
        "UPDATE t SET k = 5",
    )

    prefix = avro_string(name) + avro_string("t")
    assert keys == [prefix + bytes([66]), prefix + bytes([10, 66])]


def test_minimal_images_have_keys(database: DatabaseFixture) -> None:
    """Where the after image lacks the key, the before image's stands."""
    name, keys = keys_of(
        database,
        "CREATE TABLE t(a INT, b INT, v INT, PRIMARY KEY(a, b))",
        "INSERT INTO t VALUES (1, 2, 0)",
        "SET binlog_row_image='MINIMAL'",
        "UPDATE t SET v = 9",
        "UPDATE t SET b = 3",
        "DELETE FROM t",
    )

    prefix = avro_string(name) + avro_string("t")
    assert keys == [
        prefix + b"\x02\x04",
        prefix + b"\x02\x04",
        prefix + b"\x02\x06",
        prefix + b"\x02\x06",
    ]


def test_a_key_that_moves_on_or_off_the_calendar_is_the_new_one(database: DatabaseFixture) -> None:
    """Of an update the later date keys the record, whichever of the two no calendar has."""
    name, keys = keys_of(
        database,
        "SET sql_mode=''",
        "CREATE TABLE t(a DATE, b INT, PRIMARY KEY(b, a))",
        "INSERT INTO t VALUES ('0000-00-00', 7)",
        "UPDATE t SET a = '1970-01-02'",
        "UPDATE t SET a = '2024-00-00'",
        "UPDATE t SET a = '2024-02-00'",
        "UPDATE t SET b = 8",
    )

    prefix = avro_string(name) + avro_string("t")
    assert keys == [
        prefix + b"\x0e" + avro_string("0000-00-00"),
        prefix + b"\x0e" + b"\x02",
        prefix + b"\x0e" + avro_string("2024-00-00"),
        prefix + b"\x0e" + avro_string("2024-02-00"),
        prefix + b"\x10" + avro_string("2024-02-00"),
    ]


def test_dates_off_the_calendar_in_a_key(database: DatabaseFixture) -> None:
    """A zero date in a primary key stands in the record's key by its text."""
    name, keys = keys_of(
        database,
        "SET sql_mode=''",
        "CREATE TABLE t(a DATE, b INT, v INT, PRIMARY KEY(b, a))",
        "INSERT INTO t VALUES ('0000-00-00', 7, 1), ('2024-00-00', 7, 1)",
        "INSERT INTO t VALUES ('1970-01-02', 7, 1)",
    )

    prefix = avro_string(name) + avro_string("t") + b"\x0e"
    assert keys == [
        prefix + avro_string("0000-00-00"),
        prefix + avro_string("2024-00-00"),
        prefix + b"\x02",
    ]
