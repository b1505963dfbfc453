"""WHERE clauses compared with the servers' answers, for random rows and conditions."""

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from event_token.errors import UsageError
from producers.decoder import RuleBroken
from producers.filters.binding import TableFilters
from producers.filters.conditions import RuleError
from producers.filters.rules import FilterRule, FilterSettings, TablePattern
from shardstream.stream_filter import StreamFilter
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set
from tests.producers.decoder.decoding import decode
from tests.producers.filters.answers import ALL
from topics.records.vevent import EventType

ROWS: Final = 150
CONDITIONS: Final = 400

COLUMNS: Final = {
    "tiny": "TINYINT",
    "big": "BIGINT UNSIGNED",
    "number": "BIGINT",
    "price": "DECIMAL(12,3)",
    "huge": "DECIMAL(40,10)",
    "ratio": "DOUBLE",
    "single": "FLOAT",
    "name": "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "fixed": "CHAR(8) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "plain": "VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin",
    "west": "VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_bin",
    "modern": "VARCHAR(20) CHARACTER SET utf8mb4",
    "raw": "VARBINARY(10)",
    "padded": "BINARY(4)",
    "day": "DATE",
    "at": "DATETIME(3)",
    "seen": "TIMESTAMP NULL",
    "took": "TIME(2)",
    "born": "YEAR",
    "kind": "ENUM('a','b','B','c d') CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "flags": "BIT(12)",
    "labels": "SET('x','y')",
    "doc": "JSON",
}
WORDS: Final = ("", "a", "A", "b", "ab", "a b", "a ", "ä", "é", "e", "a\t", "%", "_", "|", "abc")
NUMBERS: Final = ("0", "1", "-1", "7", "127", "-128", "18446744073709551615", "9007199254740993")
DATES: Final = ("0000-00-00", "2024-02-00", "2024-02-29", "1999-12-31", "2038-01-01", "2024-03-01")
CLOCKS: Final = ("00:00:00", "23:59:59", "12:00:00.5", "12:00:00.25", "07:08:09.125")


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def value_of(name: str, chance: random.Random) -> str:
    """Draw a literal that the column can hold."""
    if chance.random() < 0.15:
        return "NULL"
    number = int(chance.choice(NUMBERS))
    match name:
        case "tiny":
            return str(max(-128, min(127, number)))
        case "big":
            return str(abs(number))
        case "number":
            return str(number % 2**63)
        case "price" | "huge":
            return f"{number % 10**8}.{chance.choice(('0', '5', '125', '001'))}"
        case "ratio" | "single":
            return chance.choice(("0.1", "1e10", "-2.5", "16777217", "0.5", "3", "0"))
        case "name" | "fixed" | "modern":
            return quoted(chance.choice(WORDS))
        case "plain" | "west":
            return quoted(chance.choice([w for w in WORDS if w.isascii() or name == "west"]))
        case "raw" | "padded":
            return chance.choice(("x'00'", "'a'", "'a '", "x'61000000'", "'b%'", "x'ff'", "''"))
        case "day":
            return quoted(chance.choice(DATES))
        case "at":
            return quoted(f"{chance.choice(DATES)} {chance.choice(CLOCKS)}")
        case "seen":
            return quoted(f"{chance.choice(DATES[2:5])} {chance.choice(CLOCKS[:2])}")
        case "took":
            return quoted(chance.choice((*CLOCKS[:4], "-12:00:00", "838:59:59", "100:00:00")))
        case "born":
            return chance.choice(("1901", "2155", "2000", "1999", "0"))
        case "kind":
            return quoted(chance.choice(("a", "b", "B", "c d")))
        case "flags":
            return str(chance.randrange(4096))
        case "labels":
            return chance.choice(("'x'", "'x,y'", "''"))
        case _:
            return chance.choice(("'{}'", "'1'", "'null'"))


def literal_for(name: str, chance: random.Random) -> str:
    """Draw a constant that rules can compare the column with, or sometimes another."""
    if chance.random() < 0.05:
        name = chance.choice(list(COLUMNS))
    if name in {"price", "huge", "tiny", "big", "number"} and chance.random() < 0.3:
        return f"{Decimal(chance.choice(NUMBERS)) + Decimal(chance.choice(('0', '0.5', '.125')))}"
    literal = "NULL"
    while literal == "NULL":
        literal = value_of(name, chance)
    return literal


def condition(chance: random.Random, depth: int = 0) -> str:
    """Draw a random WHERE."""
    if depth < 3 and chance.random() < 0.4:
        word = chance.choice(("AND", "OR"))
        parts = [condition(chance, depth + 1) for _ in range(chance.randint(2, 3))]
        return "(" + f" {word} ".join(parts) + ")"
    if chance.random() < 0.15:
        return f"NOT ({condition(chance, depth + 1)})"
    name = chance.choice(list(COLUMNS))
    literal: Callable[[], str] = lambda: literal_for(name, chance)  # noqa: E731 - short and local
    column = name
    if name == "modern" and chance.random() < 0.8:
        column = "modern COLLATE utf8mb4_bin"
    match chance.randrange(6):
        case 0:
            values = ", ".join(literal() for _ in range(chance.randint(1, 3)))
            return f"{column} {chance.choice(('IN', 'NOT IN'))} ({values})"
        case 1:
            word = chance.choice(("BETWEEN", "NOT BETWEEN"))
            return f"{column} {word} {literal()} AND {literal()}"
        case 2:
            return f"{name} IS {chance.choice(('NULL', 'NOT NULL'))}"
        case 3:
            pattern = "".join(chance.choice(("%", "_", "a", "b", " ", "|%", "ä")) for _ in range(4))
            word = chance.choice(("LIKE", "NOT LIKE"))
            return f"{column} {word} {quoted(pattern.rstrip('|'))} ESCAPE '|'"
        case _:
            operator = chance.choice(("=", "<>", "<", "<=", ">", ">=", "<=>", "!="))
            if chance.random() < 0.1:
                return f"{literal()} {operator} {column}"
            return f"{column} {operator} {literal()}"


def test_rules_want_the_rows_that_select_finds(database: DatabaseFixture) -> None:
    """For random rows of every kind of column, a rule is refused or keeps what SELECT finds.

    So does a reader that asks for the same of the log, where text has no collation.
    """
    chance = random.Random(2024)
    before = executed_set(database)
    name = database.new_database()
    declared = ", ".join(f"{column} {kind}" for column, kind in COLUMNS.items())
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00', NAMES utf8mb4")
        cursor.execute(f"CREATE TABLE {name}.t(id INT PRIMARY KEY, {declared})")
        for i in range(ROWS):
            values = ", ".join(value_of(column, chance) for column in COLUMNS)
            cursor.execute(f"INSERT INTO {name}.t VALUES ({i}, {values})")
        stream = capture(database, before)
        log, _ = decode(stream, database.flavor, before)
        rows = [event for event in log.events() if event.type is EventType.ROW]
        kept = refused = read = 0
        for _ in range(CONDITIONS):
            where = condition(chance)
            try:
                rule = FilterRule(TablePattern(f"{name}.t"), columns=("id",), where=where)
                rules = TableFilters(FilterSettings(rules=(rule,)), {})
                sink, _ = decode(stream, database.flavor, before, rules=rules)
            except (RuleError, RuleBroken):
                refused += 1
                continue
            cursor.execute(f"SELECT id FROM {name}.t WHERE {where} ORDER BY id")
            found = [e.after["id"] for e in sink.events() if e.after is not None]
            wanted = [row[0] for row in cursor.fetchall()]
            assert found == wanted, where
            kept += 1
            chosen = StreamFilter(where=where)
            try:
                given = [event for event in rows if chosen.apply(event) is not None]
            except UsageError:
                continue
            assert [event.after["id"] for event in given if event.after] == wanted, where
            read += 1
    assert kept > CONDITIONS // 4, (kept, refused)
    assert read > CONDITIONS // 10, (kept, read)


def test_answers_are_those_of_the_servers(database: DatabaseFixture) -> None:
    """D7: PAD SPACE, mixed numbers, bytes, times: the table's answers are SELECT's, and ours."""
    before = executed_set(database)
    name = database.new_database()
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00', NAMES utf8mb4")
        for i, answers in enumerate(ALL):
            cursor.execute(f"CREATE TABLE t{i} (id INT PRIMARY KEY, v {answers.sql_type})")
            for n, (literal, _) in answers.values.items():
                cursor.execute(f"INSERT INTO t{i} VALUES ({n}, {literal})")
        stream = capture(database, before)
        for i, answers in enumerate(ALL):
            for where, kept in answers.kept.items():
                cursor.execute(f"SELECT id FROM t{i} WHERE {where}")
                assert {row[0] for row in cursor.fetchall()} == kept, (answers.sql_type, where)
                rule = FilterRule(TablePattern(f"{name}.t{i}"), columns=("id",), where=where)
                only = TablePattern(f"{name}.t{i}")
                rules = TableFilters(FilterSettings(include=(only,), rules=(rule,)), {})
                sink, _ = decode(stream, database.flavor, before, rules=rules)
                found = {e.after["id"] for e in sink.events() if e.after is not None}
                assert found == kept, (answers.sql_type, where)
