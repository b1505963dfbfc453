"""Conditions and the rows that they keep: what servers answer, as one table.

One test holds it against servers of both families, another compares the rules without a server.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from producers.filters.where import SourceColumn
from topics.records.table_shape import Column, ValueKind

BIG = 18446744073709551615
DAY_US = 86_400_000_000


@dataclass(frozen=True)
class Answers:
    """A column `v`, its values as (SQL, raw value) by id, and for conditions the ids they keep."""

    sql_type: str
    column: SourceColumn
    values: Mapping[int, tuple[str, object]]
    kept: Mapping[str, set[int]]
    refused: tuple[str, ...] = ()


def column(kind: ValueKind, sql_type: str, collation: str = "") -> SourceColumn:
    """The column as a table map describes it."""
    return SourceColumn(Column("v", kind, sql_type), collation)


TEXTS = {n: (f"'{text}'", text) for n, text in enumerate(("a", "a ", "a\t", "b", "", "ä"), 1)}
PADDED = Answers(
    "VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    column(ValueKind.STRING, "varchar(9)", "utf8mb4_bin"),
    TEXTS,
    {
        "v = 'a '": {1, 2},
        "v = 'a'": {1, 2},
        "v <> 'a  '": {3, 4, 5, 6},
        "v IN ('a ', 'b  ')": {1, 2, 4},
        "v IN ('   ')": {5},
        "v < 'a '": {3, 5},
        "v <= 'a'": {1, 2, 3, 5},
        "v > 'a '": {4, 6},
        "v >= 'a   '": {1, 2, 4, 6},
        "v BETWEEN 'a ' AND 'b '": {1, 2, 4},
        "v < 'a\t'": {5},
        "v LIKE 'a'": {1},
        "v LIKE 'a_'": {2, 3},
        "v LIKE '%'": {1, 2, 3, 4, 5, 6},
        "v NOT LIKE 'a%'": {4, 5, 6},
        "v LIKE 'a|%' ESCAPE '|'": set(),
        "v LIKE '%a%'": {1, 2, 3},
        "v = 'a ' COLLATE utf8mb4_bin": {1, 2},
    },
    ("v = 5", "v IN ('a', 5)", "v = x'61'"),
)
BASIC = Answers(
    "VARCHAR(9) CHARACTER SET utf8mb3 COLLATE utf8mb3_bin",
    column(ValueKind.STRING, "varchar(9)", "utf8mb3_bin"),
    TEXTS,
    {"v = 'ä'": {6}, "v <> '\uffff'": {1, 2, 3, 4, 5, 6}, "v IN ('a', '')": {1, 2, 5}},
    ("v = '\U0001f600'", "v < '\U00010000'"),
)
WEST = Answers(
    "VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_bin",
    column(ValueKind.STRING, "varchar(9)", "latin1_bin"),
    TEXTS,
    {"v = 'ä'": {6}, "v = 'a '": {1, 2}, "v IN ('ä ', 'b')": {4, 6}},
    ("v < 'b'", "v = '€'", "v = '\x80'", "v = '\x9f'", "v = 'ł'"),
)
SIGNED = Answers(
    "BIGINT",
    column(ValueKind.LONG, "bigint"),
    {n: (str(value), value) for n, value in enumerate((-1, 0, 1, 7, 2**53 + 1), 1)},
    {
        "v IN (1, -1, 7)": {1, 3, 4},
        "v IN (1.0, -1.0)": {1, 3},
        "v IN (0.5, 7.0)": {4},
        "v BETWEEN -1 AND 1": {1, 2, 3},
        "v BETWEEN -0.5 AND 7.5": {2, 3, 4},
        "v IN (9007199254740993)": {5},
        "v > 0.5": {3, 4, 5},
        "v <= -1": {1},
    },
    ("v IN (1, 0.5)", "v BETWEEN 0.5 AND 7", "v BETWEEN -1 AND 7.0", "v = '1'", "v = 1e0"),
)
UNSIGNED = Answers(
    "BIGINT UNSIGNED",
    column(ValueKind.UNSIGNED_LONG, "bigint unsigned"),
    {n: (str(value), value) for n, value in enumerate((0, 1, 7, BIG), 1)},
    {
        f"v IN ({BIG}, 1)": {2, 4},
        f"v BETWEEN 1 AND {BIG}": {2, 3, 4},
        "v > -1": {1, 2, 3, 4},
        "v = -1": set(),
        "v < 0.5": {1},
    },
    ("v IN (-1, 1)", "v BETWEEN -1 AND 7", "v IN (1, 1.0)"),
)
DECIMALS = Answers(
    "DECIMAL(12,3)",
    SourceColumn(Column("v", ValueKind.DECIMAL, "decimal(12,3)", 12, 3)),
    {
        n: (text, int(text.replace(".", "")))
        for n, text in enumerate(("0.000", "1.000", "0.125"), 1)
    },
    {
        "v IN (1, 0.125)": {2, 3},
        "v BETWEEN 0 AND 0.5": {1, 3},
        "v = 0.1250": {3},
        "v > 0.1249": {2, 3},
        f"v < 1{'0' * 64}": {1, 2, 3},
        f"v > 0.{'0' * 37}1": {2, 3},
    },
    (f"v < 1{'0' * 65}", f"v > 0.{'0' * 38}1", "v = 1e0"),
)
BYTES = Answers(
    "VARBINARY(9)",
    column(ValueKind.BYTES, "varbinary(9)", "binary"),
    {
        n: (f"x'{value.hex()}'", value)
        for n, value in enumerate((b"a", b"a ", b"b%", b"\x00", b"\xff", b""), 1)
    },
    {
        "v = 'a'": {1},
        "v = x'61'": {1},
        "v = 'a '": {2},
        "v IN ('a', x'00')": {1, 4},
        "v < 'b'": {1, 2, 4, 6},
        "v >= x'ff'": {5},
        "v <> ''": {1, 2, 3, 4, 5},
        "v LIKE 'a%'": {1, 2},
    },
    ("v = 5", "v IN ('a', 5)"),
)
TIMESTAMPS = Answers(
    "TIMESTAMP NULL",
    column(ValueKind.TIMESTAMP, "timestamp"),
    {
        1: ("'1970-01-02 00:00:00'", DAY_US),
        2: ("'2024-02-29 00:00:00'", 1_709_164_800_000_000),
        3: ("'2024-02-29 12:30:00'", 1_709_209_800_000_000),
        4: ("'2038-01-18 00:00:00'", 2_147_385_600_000_000),
    },
    {
        "v = '2024-02-29'": {2},
        "v > '2024-02-29 00:00:00'": {3, 4},
        "v BETWEEN '2024-02-29' AND '2024-02-29 12:30:00'": {2, 3},
        "v IN ('2024-02-29', '2038-01-18')": {2, 4},
        "v <= '1970-01-02'": {1},
        "v >= '2038-01-18 00:00:00'": {4},
    },
    (
        "v > '1970-01-01 23:59:59'",
        "v < '2038-01-18 00:00:01'",
        "v = '2024-02-29 00:00:00.5'",
        "v = '24-02-29'",
        "v = 20240229",
        "v = '2024-02-30'",
    ),
)
DATES = Answers(
    "DATE",
    column(ValueKind.DATE, "date"),
    {1: ("'2024-02-29'", 19782), 2: ("'0000-00-00'", "0000-00-00"), 3: ("'1969-12-31'", -1)},
    {
        "v = '2024-02-29'": {1},
        "v < '2024-02-29'": {2, 3},
        "v IN ('2024-02-29', '1969-12-31')": {1, 3},
        "v BETWEEN '1000-01-01' AND '1999-01-01'": {3},
    },
    ("v = '2024-02-29 00:00:00'", "v = '2024-02-31'"),
)
TIMES = Answers(
    "TIME(2)",
    column(ValueKind.TIME, "time(2)"),
    {
        1: ("'00:00:01.25'", 1_250_000),
        2: ("'-12:00:00'", -43_200_000_000),
        3: ("'838:59:59'", 3_020_399_000_000),
    },
    {
        "v = '00:00:01.25'": {1},
        "v < '00:00:01.2'": {2},
        "v >= '-12:00:00'": {1, 2, 3},
        "v = '838:59:59'": {3},
    },
    ("v = '00:00:01.255'", "v = '839:00:00'", "v = 1", "v = '0:60:00'"),
)
ALL = (PADDED, BASIC, WEST, SIGNED, UNSIGNED, DECIMALS, BYTES, TIMESTAMPS, DATES, TIMES)
