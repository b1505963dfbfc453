"""MySQL and MariaDB as targets of their own kind: values and definitions arrive exactly."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from event_token import Flavor
from event_token.errors import UsageError
from sinks.database.database import SqlDatabase
from sinks.database.options import DatabaseOptions
from sinks.database.verification import VerifyTarget, verify_database
from sinks.errors import BadValue
from sinks.rule.columns import with_texts
from sinks.rule.task_changes import Decoded, TableChanges, dates_of, versions_of_keys
from tests.database_servers import DatabaseFixture
from tests.sinks.database.followed import (
    ITEMS,
    Followed,
    Item,
    batch,
    changes,
)
from tests.sinks.database.mysql_targets import MysqlTargets
from tests.sinks.table_topics.envelope.decoded import decoded_rows
from topics.errors import CannotApply, ShapeConflict
from topics.records.table_shape import Column, TableShape, ValueKind

FROM_TEXT = "ST_GeomFromText"
POINT = "'POINT(1 -2.5)'"
RING = "'POLYGON((0 0,1 0,1 1,0 0))'"
# By column: its type in the source, and values as SQL. Each gets a row of NULL besides.
COLUMNS = {
    "i": ("tinyint", "-128", "127", "0"),
    "u": ("mediumint unsigned", "16777215", "0", "1"),
    "iu": ("int unsigned", "4294967295", "0", "1"),
    "bu": ("bigint unsigned", "18446744073709551615", "0", "9223372036854775808"),
    "p": ("decimal(65,30)", f"-{'9' * 35}.{'0' * 29}1", "0", "0.1"),
    "q": ("decimal(20,8)", "0.00000001", "-0.00000001", "123456789012.12345678"),
    "f": ("float", "0.1", "1.17549e-38", "-16777217"),
    "g": ("double", "1.7976931348623157e308", "2.2250738585072014e-308", "0.1"),
    "b1": ("bit(1)", "b'1'", "b'0'", "b'1'"),
    "b64": ("bit(64)", "18446744073709551615", "0", "39"),
    "y": ("year", "0", "2155", "1901"),
    "d": ("date", "'0000-00-00'", "'2024-02-00'", "'9999-12-31'"),
    "dt": ("datetime(3)", "'2024-02-31 01:02:03.004'", "'0000-00-00'", "'1000-01-01'"),
    "ts": ("timestamp(6) NULL", "'1970-01-01 00:00:01.000001'", "'2038-01-19 03:14:07'", "0"),
    "ti": ("time(6)", "'-838:59:59'", "'-00:00:00.000001'", "'838:59:58.999999'"),
    "t0": ("time", "'01:02:03'", "'-01:02:03'", "'00:00:00'"),
    "c": ("char(10)", "'a  '", "''", "'ü😀'"),
    "v": ("varchar(300)", "'trailing  '", r"'\\N'", r"'\0 \' \" \t \n \r \\ % :x'"),
    "l": ("varchar(10) CHARACTER SET latin1", "'é'", "'€'", "''"),
    "t": ("mediumtext", "REPEAT('x', 70000)", "''", "'NULL'"),
    "e": ("enum('a','b','')", "'b'", "0", "''"),
    "s": ("set('a','b','c d')", "'a,c d'", "''", "'b'"),
    "vb": ("varbinary(20)", "X'00FF5C0A0927'", "''", "X'00'"),
    "fb": ("binary(4)", "X'01000000'", "X'00000000'", "X'FFFFFFFF'"),
    "bl": ("blob", "X'5C4E'", "''", "X'0A0D00'"),
    "j": ("json", """'{"a": [1.5, null, "\\\\u0000ü"]}'""", "'null'", "'1e100'"),
    "geo": (
        "geometry",
        f"{FROM_TEXT}('POINT(1 -2.5)', 4326)",
        "POINT(0, 0)",
        f"{FROM_TEXT}({RING})",
    ),
}
# Beyond MySQL's DECIMAL.
OF_MARIADB = {
    "w": ("decimal(65,38)", f"-{'9' * 27}.{'9' * 38}", f"0.{'0' * 37}1", "0"),
    "x": ("decimal(38,38)", f"-0.{'9' * 38}", f"0.{'0' * 37}1", f"0.{'12' * 19}"),
}
# How columns are compared: texts of FLOAT and DOUBLE are rounded for display.
COMPARED = {"f": "{}.f", "g": "{}.g", "l": "CAST(CONVERT({}.l USING utf8mb4) AS BINARY)"}


@pytest.fixture(params=[(0, 64), (1, 64), (1, 0)], ids=["insert", "load", "load-unwarned"])
def may_load(database: DatabaseFixture, request: pytest.FixtureRequest) -> Iterator[None]:
    """A server that refuses or allows LOAD DATA LOCAL, and may keep no warnings."""
    change = "SET GLOBAL local_infile = %s, GLOBAL max_error_count = %s"
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.local_infile, @@GLOBAL.max_error_count")
        [before] = cursor.fetchall()
        cursor.execute(change, request.param)
        yield
        cursor.execute(change, before)


def inserted(shape: TableShape, rows: pa.RecordBatch) -> Decoded:
    """Rows that are all new."""
    every = np.ones(rows.num_rows, bool)
    return Decoded(shape, rows, rows["token"], every, ~every, ~every)


def test_values_are_those_of_the_source(database: DatabaseFixture, may_load: None) -> None:
    """Each type, its limits, invalid dates, NULL and what a file or a statement must escape."""
    columns = COLUMNS | OF_MARIADB if database.flavor is Flavor.MARIADB else COLUMNS
    listed = "id bigint unsigned, code varchar(20), " + ", ".join(
        f"{name} {values[0]}" for name, values in columns.items()
    )
    rows = [
        f"({i}, 'k{i} ', {', '.join(values[i] for values in columns.values())})" for i in (1, 2, 3)
    ]
    rows.append(f"(4, 'K', {', '.join('NULL' for _ in columns)})")
    [(shape, decoded)] = decoded_rows(
        database,
        (
            f"CREATE TABLE odd ({listed}, PRIMARY KEY (id, code)) CHARACTER SET utf8mb4",
            "SET SESSION sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'",
            f"INSERT INTO odd VALUES {', '.join(rows)}",
        ),
    )
    found = inserted(shape, decoded)
    shape = with_texts(shape, dates_of(found, shape))
    changed = TableChanges(shape.database, shape.table, shape, versions_of_keys(found, shape))
    followed = Followed(MysqlTargets(database))
    followed.database.prepare()

    assert followed.database.apply_arrow(batch(0), [changed])

    for name in ("code", *columns):
        compared = COMPARED.get(name, f"CAST({{}}.{name} AS BINARY)")
        same = followed.rows(
            f"SELECT t.id FROM odd t JOIN {shape.database}.odd s ON s.id = t.id "
            f"WHERE {compared.format('t')} <=> {compared.format('s')}"
        )
        assert len(same) == len(rows), f"{name}: {sorted(same)}"
    assert followed.rows("SELECT d__text FROM odd WHERE id = 2") == [("2024-02-00",)]


def test_a_decimal_of_mariadb_is_refused_by_mysql(mysql_a: DatabaseFixture) -> None:
    """More than 30 digits after the point: the message names the column, and a way on."""
    wide = Column("w", ValueKind.DECIMAL, "decimal(65,31)", 65, 31)
    followed = Followed(MysqlTargets(mysql_a))
    followed.database.prepare()

    with pytest.raises(UsageError, match=r"scale 31 .* 'w'.* or leave the table out .* --table"):
        followed.apply([Item(1, 1, 100)], shape=replace(ITEMS, columns=(*ITEMS.columns, wide)))


def test_a_row_that_is_refused_is_named(database: DatabaseFixture, may_load: None) -> None:
    """Too long, or no JSON: the message has key, column, shard and seq, and no value.

    MariaDB takes any text as JSON: see `test_differing_types`.
    """
    text = Column("c", ValueKind.STRING, "varchar(3)")
    followed = Followed(MysqlTargets(database))
    followed.database.prepare()
    other = (replace(text, kind=ValueKind.JSON), '{"secret"')
    if database.flavor is Flavor.MARIADB:
        other = (replace(text, kind=ValueKind.ENUM), "secret" * 50)
    for table, (column, bad) in (("items", (text, "secret")), ("others", other)):
        shape = replace(ITEMS, table=table, columns=(*ITEMS.columns, column))
        items = [Item(i, i, 100, note="a\nb", more={"c": "1"}) for i in range(1, 6)]
        items[2] = replace(items[2], more={"c": bad})

        found = rf'shop.{table}, key \{{"id":3.*, seq 3, column c: '
        with pytest.raises(BadValue, match=found) as caught:
            followed.database.stage([changes(items, shape)])
        assert "secret" not in str(caught.value)


def test_tables_are_completed_after_a_kill(database: DatabaseFixture) -> None:
    """DDL commits by itself: what a killed writer left half done is found and completed."""
    followed = Followed(MysqlTargets(database))
    followed.database.prepare()
    followed.apply([Item(1, 1, 100, note="a", amount=1)])
    # Killed between the table and its homes.
    followed.rows("DROP TABLE _shardstream.homes_1")
    followed.apply([Item(3, 3, 150)])
    # Killed between an ALTER and the catalog's row; the table of homes is altered first.
    for table in ("_shardstream.homes_1", "shop.items"):
        followed.rows(f"ALTER TABLE {table} RENAME COLUMN note TO remark")
    followed.rows("ALTER TABLE _shardstream.homes_1 ADD COLUMN added text")
    shape = replace(
        ITEMS,
        columns=(
            *ITEMS.columns[:2],
            replace(ITEMS.columns[2], name="remark"),
            ITEMS.columns[3],
            Column("added", ValueKind.STRING, "text"),
        ),
    )

    staged = followed.database.stage(
        [
            changes(
                [Item(2, 2, 200, more={"remark": "b", "added": "c"})],
                shape,
                renames=(("-80", "note", "remark"),),
            )
        ]
    )
    assert followed.database.apply(batch(2), staged)

    query = "SELECT id, remark, amount, added FROM shop.items ORDER BY id"
    assert followed.rows(query) == [
        (1, "a", 1, None),
        (2, "b", None, "c"),
        (3, None, None, None),
    ]
    assert followed.rows("SELECT COUNT(*) FROM _shardstream.homes_1") == [(0,)]
    assert followed.stages == []


def test_the_defaults_of_the_database_do_not_matter(database: DatabaseFixture) -> None:
    """Names and keys of all scripts, names that differ by case, and servers that demand keys."""
    followed = Followed(MysqlTargets(database), on_bad_row="table")
    followed.database.prepare()
    other = SqlDatabase(followed.url, DatabaseOptions("Commerce", on_bad_row="table"))
    other.prepare()
    name = "\u0438\u043c\u044f" * 21
    shape = replace(ITEMS, columns=(*ITEMS.columns, Column(name, ValueKind.STRING, "varchar(1)")))
    items = [Item(1, 1, 100, more={name: "x"}), Item(2, 2, 100, more={name: "too long"})]
    bad = changes(items, shape)
    keys = pa.array(['{"id":1}', '{"id":2,"part":"\U0001f600"}'])
    bad = replace(bad, rows=bad.rows.set_column(0, "_key", keys))
    upper = replace(ITEMS, table="ITEMS")

    assert followed.database.apply_arrow(batch(0), [bad, changes(items[:1], upper)])

    assert other.held() is None
    assert sorted(table for _, table in followed.database.known()) == ["ITEMS", "items"]
    assert followed.rows("SELECT source_key FROM _shardstream.rejected") == [(keys[1].as_py(),)]
    tables = f"FROM information_schema.tables WHERE table_schema = '{followed.name}'"
    assert (
        followed.rows(
            f"SELECT table_name {tables} AND (engine <> 'InnoDB' OR table_name NOT IN (SELECT "
            f"table_name FROM information_schema.statistics WHERE table_schema = '{followed.name}' "
            f"AND index_name = 'PRIMARY'))"
        )
        == []
    )


def test_rows_are_as_wide_as_in_another_character_set(database: DatabaseFixture) -> None:
    """In latin1, 70 VARCHAR(255) are a row, in utf8mb4 too many bytes; collations are kept."""
    followed = Followed(MysqlTargets(database))
    followed.database.prepare()
    texts = tuple(Column(f"c{i}", ValueKind.STRING, "varchar(255)") for i in range(70))
    wide = [replace(c, sql_type="varchar(900)") for c in texts[-5:]]
    wider = (*texts[:-5], *wide, replace(texts[0], name="d"))

    for number, more in enumerate((texts, wider)):
        item = Item(1, number + 1, 100 + number, more={column.name: "\u00fc" for column in more})
        shape = replace(ITEMS, columns=(*ITEMS.columns, *more))
        assert followed.database.apply_arrow(batch(number), [changes([item], shape)])
        collated = "ALTER TABLE shop.items MODIFY c0 VARCHAR(255) COLLATE utf8mb4_general_ci"
        followed.rows(collated)

    texts = (replace(wider[0], sql_type="varchar(300)"), *wider[1:])
    shape = replace(ITEMS, columns=(*ITEMS.columns, *texts))
    assert followed.database.apply_arrow(batch(2), [changes([], shape)])
    assert "utf8mb4_general_ci" in followed.rows("SHOW FULL COLUMNS FROM items LIKE 'c0'")[0]
    assert followed.rows("SELECT c0, c69, d FROM shop.items") == [("\u00fc",) * 3]


def test_a_key_that_is_too_long_is_refused_before_anything_is_created(
    database: DatabaseFixture,
) -> None:
    """The table can then be left out, and the others go on."""
    followed = Followed(MysqlTargets(database))
    followed.database.prepare()
    part = replace(ITEMS.columns[1], sql_type="varchar(768)")
    shape = replace(ITEMS, columns=(ITEMS.columns[0], part, *ITEMS.columns[2:]))

    with pytest.raises(UsageError, match=r"shop\.items: its primary key may take 3073 bytes"):
        followed.database.stage([changes([Item(1, 1, 100)], shape)])
    assert followed.database.known() == {}


def test_keys_of_rare_types(database: DatabaseFixture) -> None:
    """Keys of FLOAT, which verify cannot compare, and invalid dates in keys are named."""
    tables = decoded_rows(
        database,
        (
            "CREATE TABLE floats (part FLOAT PRIMARY KEY)",
            "INSERT INTO floats VALUES (0.1)",
            "CREATE TABLE days (part DATE PRIMARY KEY)",
            "SET SESSION sql_mode = ''",
            "INSERT INTO days VALUES ('0000-00-00')",
        ),
    )
    (floats, row), (days, rows) = tables
    followed = Followed(MysqlTargets(database))
    followed.database.prepare()
    versions = versions_of_keys(inserted(floats, row), floats)
    kept = TableChanges(floats.database, floats.table, floats, versions)
    assert followed.database.apply_arrow(batch(0), [kept])

    assert followed.rows("SELECT COUNT(*) FROM floats") == [(1,)]
    with pytest.raises(UsageError, match=r"floats: its primary key has the column part"):
        list(verify_database(VerifyTarget(followed.url, "commerce"), []))
    with pytest.raises(CannotApply, match=r"days, shard .*, seq .* invalid date.*--table"):
        versions_of_keys(inserted(days, rows), days)


def test_columns_that_exchange_names_stop(database: DatabaseFixture) -> None:
    """A batch that runs again would exchange them back; names that are used once may be chained."""
    followed = Followed(MysqlTargets(database))
    followed.database.prepare()
    followed.apply([Item(1, 1, 100, note="a", amount=1)])
    chained = (("-80", "note", "x"), ("-80", "x", "remark"))
    shape = replace(
        ITEMS,
        columns=(*ITEMS.columns[:2], replace(ITEMS.columns[2], name="remark"), ITEMS.columns[3]),
    )
    for table in ("_shardstream.homes_1", "shop.items"):
        followed.rows(f"ALTER TABLE {table} RENAME COLUMN note TO remark")
    followed.apply([Item(3, 3, 300, more={"remark": "c"})], shape=shape, renames=chained)
    assert followed.rows("SELECT id, remark, amount FROM shop.items ORDER BY id") == [
        (1, "a", 1),
        (3, "c", None),
    ]

    swapped = (("-80", "remark", "y"), ("-80", "amount", "remark"), ("-80", "y", "amount"))
    with pytest.raises(ShapeConflict, match="amount gets the name remark, which another column"):
        followed.apply([Item(4, 4, 400)], renames=swapped)


def test_a_database_must_be_named_and_its_rights_are_told(mysql_a: DatabaseFixture) -> None:
    """Without a database there is no place for tables; without rights the message says where."""
    with pytest.raises(UsageError, match="names no database: mysql://"):
        SqlDatabase("mysql://somebody@localhost", DatabaseOptions("commerce"))
    targets = MysqlTargets(mysql_a)
    user, password = targets.new_login(targets.new_database())
    other = SqlDatabase(targets.url("mysql", user, password), DatabaseOptions("commerce"))
    with pytest.raises(UsageError, match=r"denied.*docs/second-database.md lists the rights"):
        other.prepare()
