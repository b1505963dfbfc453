"""Databases of which only SQLAlchemy's dialect is known: what they can hold, and what stops."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest

from event_token.errors import UsageError
from spark_consumers.errors import BadValue, TargetConflict
from spark_consumers.second_database.database import SqlDatabase, TargetOptions
from spark_consumers.second_database.general.dialect import GeneralDialect
from spark_consumers.second_database.general.sqlite import SqliteDialect
from spark_consumers.second_database.general.types import TYPES
from spark_consumers.second_database.urls import dialect_of, parse_url
from tests.database_servers import DatabaseFixture
from tests.spark_consumers.second_database.followed import (
    FILES,
    ITEMS,
    Followed,
    Item,
    changes,
)
from tests.spark_consumers.second_database.kinds import OTHERS, kinds
from tests.spark_consumers.second_database.mysql_targets import MysqlTargets
from topics.records.table_shape import Column, ValueKind

GENERAL = pytest.mark.parametrize("target_server", [*FILES, "standard"], indirect=True)
STANDARD = pytest.mark.parametrize("target_server", ["standard"], indirect=True)


@GENERAL
def test_every_kind_of_value_arrives(followed: Followed) -> None:
    """The target gives back what the source had: exact numbers, times in microseconds."""
    micros = {**OTHERS, ValueKind.TIME: -3_020_399_000_001}
    values = {kind.value: value for kind, value in micros.items()}

    followed.apply([Item(1, 1, 100, more=values), Item(2, 2, 100)], shape=kinds())

    listed = ", ".join(f'"{name}"' for name in values)
    first, second = followed.rows(f"SELECT {listed} FROM shop.items ORDER BY id")
    changed = {
        "set": 'a,b,"},',
        "timestamp": datetime(1970, 1, 1, 0, 0, 1),  # noqa: DTZ001 - UTC without a zone
    }
    assert first == tuple({**values, **changed, **_as_texts(followed)}.values())
    assert set(second) == {None}


def _as_texts(followed: Followed) -> Mapping[str, object]:
    """What SQLite has no type for."""
    if not followed.url.startswith("sqlite"):
        return {}
    exact = ("unsigned-long", "bit64", "decimal")
    texts: dict[str, object] = {
        kind.value: str(value) for kind, value in OTHERS.items() if kind.value in exact
    }
    return {
        **texts,
        "date": "0001-01-01",
        "datetime": "9999-12-31 23:59:59.999999",
        "timestamp": "1970-01-01 00:00:01.000000",
    }


@GENERAL
def test_long_decimals_keep_their_digits(followed: Followed) -> None:
    """More digits than Python's arithmetic has, also in a column that became wider."""
    before, after = (Column("price", ValueKind.DECIMAL, "", digits, 10) for digits in (20, 38))
    most = Decimal("9" * 28 + "." + "9" * 10)
    followed.apply([Item(1, 1, 100)], shape=replace(ITEMS, columns=(*ITEMS.columns, before)))

    wider = replace(ITEMS, columns=(*ITEMS.columns, after))
    followed.apply([Item(2, 2, 200, more={"price": most})], shape=wider)

    [(found,)] = followed.rows("SELECT price FROM shop.items WHERE id = 2")
    assert str(found) == str(most)


@pytest.mark.parametrize("target_server", ["sqlite"], indirect=True)
def test_small_decimals_keep_their_digits(followed: Followed) -> None:
    """Where decimals are texts, 0.0000001 is no `1E-7`, and zero no `0E-10`."""
    column = Column("price", ValueKind.DECIMAL, "decimal(20,10)", 20, 10)
    shape = replace(ITEMS, columns=(*ITEMS.columns, column))
    prices = ("0.0000000000", "0.0000001000", "-12345.0000000001")
    items = [Item(i, i, 100, more={"price": Decimal(text)}) for i, text in enumerate(prices)]

    followed.apply(items, shape=shape)

    found = followed.rows("SELECT price FROM shop.items ORDER BY id")
    assert found == [(text,) for text in prices]


@pytest.mark.parametrize("target_server", ["sqlite"], indirect=True)
def test_nobody_writes_between_what_a_transaction_reads_and_writes(followed: Followed) -> None:
    """SQLite refuses to write what was read before another commit: the other one waits."""
    followed.apply([Item(1, 1, 100)])
    engine = dialect_of(followed.url).open_engine()
    other = sqlite3.connect(str(engine.url.database), timeout=0, isolation_level=None)
    change = "UPDATE items SET id = id + 1"

    with closing(other):
        with engine.begin() as connection:
            connection.exec_driver_sql("SELECT * FROM items")
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute(change)
            connection.exec_driver_sql(change)
        other.execute(change)
    engine.dispose()

    assert followed.rows("SELECT id FROM shop.items") == [(3,)]


@pytest.mark.parametrize("target_server", ["sqlite"], indirect=True)
def test_a_type_that_changes_values_is_refused_with_the_table(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is asked with extreme values before a table is created."""
    monkeypatch.setattr(SqliteDialect, "types", TYPES)

    with pytest.raises(UsageError, match=r"changes Decimal.* NUMERIC\(20, 0\).*unsigned-long"):
        followed.apply([Item(1, 1, 100)], shape=kinds())
    assert followed.database.known() == {}


@STANDARD
def test_a_value_that_the_database_refuses_is_named(followed: Followed) -> None:
    """Of many rows the first one is named that the driver or the database does not take."""
    bad = [Item(1, 1, 100, note="fine"), Item(2, 2, 100, note="a\0b")]

    with pytest.raises(BadValue, match=r'shop.items, key \{"id":2.*seq 2: the database refuses'):
        followed.apply(bad)


def test_a_database_whose_ddl_commits_is_refused(mysql_a: DatabaseFixture) -> None:
    """The general way needs CREATE TABLE in transactions; the server is asked."""
    name = mysql_a.new_database()
    target = MysqlTargets(mysql_a)
    url = target.url(name, *target.new_login(name)).replace("mysql:", "mysql+pymysql:")
    dialect = GeneralDialect(parse_url(url))
    engine = dialect.open_engine()

    with pytest.raises(UsageError, match=f"{name}: the database ends its transaction at CREATE"):
        dialect.check_server(engine)
    engine.dispose()


@pytest.mark.parametrize("target_server", ["sqlite"], indirect=True)
def test_a_table_of_somebody_else_is_not_taken(followed: Followed) -> None:
    """It keeps its rows; the error names it, without a schema where there are none."""
    followed.rows("CREATE TABLE shop.items (other INT)")

    with pytest.raises(UsageError, match=r"^table items exists in the target"):
        followed.apply([Item(1, 1, 100)])


@pytest.mark.parametrize("target_server", ["sqlite"], indirect=True)
def test_a_second_query_on_a_file_is_refused(followed: Followed) -> None:
    """The lock lies in a file beside the database."""
    other = SqlDatabase(followed.url, followed.options)
    another = SqlDatabase(followed.url, TargetOptions("other"))

    with pytest.raises(TargetConflict, match="another query writes to sqlite"), other.claimed():
        pass
    with another.claimed():
        followed.apply([Item(1, 1, 100)])


@pytest.mark.parametrize("target_server", ["duckdb"], indirect=True)
def test_a_file_of_one_process_is_refused_for_spark(followed: Followed) -> None:
    """Tasks could not open it; nor can rows be put aside without savepoints."""
    with pytest.raises(UsageError, match=r"duckdb:.*only one process at a time"):
        followed.database.prepare_for_tasks()
    with pytest.raises(UsageError, match=r"no savepoints.*leave out --on-bad-row"):
        SqlDatabase(followed.url, TargetOptions("other", on_bad_row="table"))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("firebird://localhost/reports", r"driver of firebird:// is missing.*install"),
        ("sqlite+pysqlcipher:///reports", r"driver of sqlite\+pysqlcipher:// is missing"),
        ("mssql://localhost/reports", "SQL Server has no booleans"),
        ("oracle://localhost/reports", "Oracle takes empty texts for NULL"),
        ("sqlite://", "--to names no file"),
    ],
)
def test_a_database_that_cannot_be_a_target_is_refused_at_once(url: str, problem: str) -> None:
    """The message says what to install, or why it will not do."""
    with pytest.raises(UsageError, match=problem):
        dialect_of(url)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """Such an error does not end by itself, so it is not tried again."""
    (tmp_path / "file").write_text("no database" * 100)

    with pytest.raises(UsageError, match="file is not a database"):
        SqlDatabase(f"sqlite:///{tmp_path / 'file'}", TargetOptions("any")).prepare()


@GENERAL
def test_changes_that_are_not_applied_leave_nothing(followed: Followed) -> None:
    """What the tasks give to the driver is written by the transaction that applies it."""
    followed.apply([Item(1, 1, 100, note="a")])
    followed.database.stage([changes([Item(1, 2, 200, note="b")])])

    assert followed.stages == []
    followed.check()
