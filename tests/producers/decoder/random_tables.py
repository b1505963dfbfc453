"""Random tables of every type with random rows, and how to compare them with a SELECT."""

import json
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from event_token import Flavor
from tests.producers.decoder.case_files import Version

# Letters that each character set has.
LETTERS = {
    "utf8mb4": "abc é€😀ß中",
    "utf8mb3": "abc é€ß中",
    "latin1": "abc é€ÿ",
    "ascii": "abc ~",
    "ucs2": "abc é€中",
    "utf16": "abc é€😀",
    "utf16le": "abc é😀",
    "utf32": "abc é😀",
    "cp1251": "abЖё№",
    "koi8r": "abЖё",
    "latin2": "abŁź",
    "greek": "abθή",
    "hebrew": "abשל",
    "tis620": "abสวั",
    "swe7": "abcåÄÖ",
    "sjis": "ab表ソｱ能",
    "cp932": "ab①髙",
    "ujis": "ab日本ﾃ",
    "big5": "ab許功蓋",
    "gbk": "ab汉字",
    "euckr": "ab한국",
}
# What mysql-replication decodes as well.
PLAIN_CHARSETS = ("utf8mb4", "latin1", "ascii")

Read = Callable[[Any, Any], Any]


def as_decoded(value: Any, _shown: Any) -> Any:
    """The decoded value as it is."""
    return value


def as_time_text(_value: Any, shown: Any) -> Any:
    """A date or time as the server prints it, from its ISO form."""
    return None if shown is None else shown.replace("T", " ").removesuffix("Z")


def as_labels(value: Any, _shown: Any) -> Any:
    return None if value is None else ",".join(value)


def as_hex(value: Any, _shown: Any) -> Any:
    return None if value is None else value.hex().upper()


@dataclass(frozen=True)
class RandomColumn:
    """One column: how it is declared, filled, selected and compared."""

    name: str
    sql_type: str
    value: Callable[[random.Random], Any]
    placeholder: str = "%s"
    select: str = "{c}"
    read: Read = as_decoded
    is_plain: bool = False  # mysql-replication gives the same value
    hidden: str = ""  # the type that a binlog does not show


def _text(letters: str, most: int) -> Callable[[random.Random], Any]:
    # Trailing spaces are not part of a CHAR's value.
    return lambda rng: "".join(rng.choices(letters, k=rng.randint(0, most))).rstrip()


def _integer(rng: random.Random, name: str) -> RandomColumn:
    sql_type, bits = rng.choice(
        (("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64))
    )
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    if rng.random() < 0.5:
        sql_type, low, high = sql_type + " UNSIGNED", 0, 2**bits - 1
    return RandomColumn(
        name, sql_type, lambda r: r.choice((low, high, 0, 1, r.randint(low, high))), is_plain=True
    )


def _decimal(
    rng: random.Random, name: str, scale_min: int = 0, scale_max: int = 30
) -> RandomColumn:
    scale = rng.randint(scale_min, scale_max)
    precision = rng.choice((max(scale, 1), 65, rng.randint(max(scale, 1), 65)))
    most = 10**precision - 1

    def value(r: random.Random) -> Decimal:
        digits = r.choice((0, 1, most, r.randint(0, most)))
        return Decimal(f"{r.choice(('', '-'))}{digits}e-{scale}")

    return RandomColumn(name, f"DECIMAL({precision},{scale})", value, is_plain=True)


def _fine_decimal(rng: random.Random, name: str) -> RandomColumn:
    """A DECIMAL with more digits after the point than MySQL has."""
    return replace(_decimal(rng, name, 31, 38), is_plain=False)


def _float(rng: random.Random, name: str) -> RandomColumn:
    if rng.random() < 0.5:
        values = lambda r: r.randint(-(2**20), 2**20) / 64  # noqa: E731 - as short as its twin
        return RandomColumn(name, "FLOAT", values, select="{c} + 0e0", is_plain=True)
    return RandomColumn(
        name, "DOUBLE", lambda r: r.uniform(-1, 1) * 10.0 ** r.randint(-300, 300), is_plain=True
    )


def _string(rng: random.Random, name: str) -> RandomColumn:
    charset = rng.choice(tuple(LETTERS))
    length = rng.choice((1, 5, 63, 64, 200))
    sql_type = rng.choice((f"CHAR({length})", f"VARCHAR({length})", "TEXT", "LONGTEXT"))
    return RandomColumn(
        name,
        f"{sql_type} CHARACTER SET {charset}",
        _text(LETTERS[charset], length),
        is_plain=charset in PLAIN_CHARSETS,
    )


def _bytes(rng: random.Random, name: str) -> RandomColumn:
    length = rng.choice((1, 16, 255, 300))
    sql_type = rng.choice((f"VARBINARY({length})", "BLOB", "MEDIUMBLOB"))
    return RandomColumn(name, sql_type, lambda r: r.randbytes(r.randint(0, length)), is_plain=True)


def _binary(rng: random.Random, name: str) -> RandomColumn:
    length = rng.choice((1, 16, 255))
    ends = (b"", b"\0", b"\0 \0")
    return RandomColumn(
        name,
        f"BINARY({length})",
        lambda r: (r.randbytes(r.randint(0, length)) + r.choice(ends))[:length],
    )


def _date_text(r: random.Random) -> str:
    if r.random() < 0.2:
        return r.choice(("0000-00-00", "2021-02-31", "2021-00-10", "2021-11-00"))
    return f"{r.randint(1, 9999):04d}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"


def _fraction(r: random.Random, digits: int) -> str:
    return f".{r.randint(0, 10**digits - 1):0{digits}d}" if digits else ""


def _temporal(rng: random.Random, name: str) -> RandomColumn:
    digits = rng.randint(0, 6)

    def clock(r: random.Random) -> str:
        time = f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}:{r.randint(0, 59):02d}"
        return time + _fraction(r, digits)

    def stamp(r: random.Random) -> str:
        if r.random() < 0.1:
            return "0000-00-00 00:00:00"
        return f"{r.randint(1971, 2037)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d} {clock(r)}"

    def time(r: random.Random) -> str:
        hours = r.choice((0, 1, 23, 24, 837))
        whole = f"{hours:02d}:{r.randint(0, 59):02d}:{r.randint(0, 59):02d}"
        return r.choice(("", "-")) + whole + _fraction(r, digits)

    sql_type, value = rng.choice(
        (
            ("DATE", _date_text),
            (f"TIME({digits})", time),
            (f"DATETIME({digits})", lambda r: f"{_date_text(r)} {clock(r)}"),
            (f"TIMESTAMP({digits}) NULL", stamp),
        )
    )
    return RandomColumn(name, sql_type, value, select="CAST({c} AS CHAR)", read=as_time_text)


def _labelled(rng: random.Random, name: str) -> RandomColumn:
    labels = [f"{c}{i}" for i, c in enumerate(rng.choices("aéz中'", k=rng.randint(1, 64)))]
    listed = ",".join("'" + label.replace("'", "''") + "'" for label in labels)
    if rng.random() < 0.5:
        return RandomColumn(name, f"ENUM({listed})", lambda r: r.choice(labels))
    return RandomColumn(
        name,
        f"SET({listed})",
        lambda r: ",".join(label for label in labels if r.random() < 0.3),
        select="CONCAT({c}, '')",
        read=as_labels,
    )


def _bit(rng: random.Random, name: str) -> RandomColumn:
    bits = rng.choice((1, 7, 8, 33, 63, 64))
    return RandomColumn(name, f"BIT({bits})", lambda r: r.randint(0, 2**bits - 1), select="{c} + 0")


def _year(_rng: random.Random, name: str) -> RandomColumn:
    return RandomColumn(name, "YEAR", lambda r: r.choice((0, 1901, 2155, 2000)), select="{c} + 0")


def _json(_rng: random.Random, name: str) -> RandomColumn:
    def value(r: random.Random, depth: int = 0) -> Any:
        kind = r.randint(0, 7 if depth < 4 else 5)
        if kind == 6:
            return {f"k{i}": value(r, depth + 1) for i in range(r.randint(0, 6))}
        if kind == 7:
            return [value(r, depth + 1) for _ in range(r.randint(0, 6))]
        plain = (None, True, r.randint(-(2**63), 2**63), "é€" * r.randint(0, 99), "", -1)
        return plain[kind]

    # MariaDB keeps the text as it is; MySQL prints its own.
    return RandomColumn(name, "JSON", lambda r: json.dumps(value(r), ensure_ascii=False))


def _geometry(rng: random.Random, name: str) -> RandomColumn:
    def value(r: random.Random) -> str:
        points = [f"{r.randint(-9, 9)} {r.randint(-9, 9)}" for _ in range(3)]
        return r.choice((f"POINT({points[0]})", f"LINESTRING({','.join(points)})"))

    place = f"ST_GeomFromText(%s, {rng.choice((0, 3857))})"
    return RandomColumn(name, "GEOMETRY", value, place, "HEX({c})", as_hex)


def _vector(_rng: random.Random, name: str) -> RandomColumn:
    return RandomColumn(
        name,
        "VECTOR(3)",
        lambda r: json.dumps([r.uniform(-9, 9) for _ in range(3)]),
        "STRING_TO_VECTOR(%s)",
        "HEX({c})",
        as_hex,
    )


def _late_timestamp(_rng: random.Random, name: str) -> RandomColumn:
    return RandomColumn(
        name,
        "TIMESTAMP NULL",
        lambda r: f"{r.randint(2038, 2105)}-{r.randint(2, 12):02d}-{r.randint(1, 28):02d} 12:34:56",
        select="CAST({c} AS CHAR)",
        read=as_time_text,
    )


def _compressed(rng: random.Random, name: str) -> RandomColumn:
    charset = rng.choice(("utf8mb4", "latin1", "sjis"))
    sql_type = rng.choice(("VARCHAR(300)", "TEXT", "MEDIUMTEXT"))
    letters = LETTERS[charset]
    return RandomColumn(
        name,
        f"{sql_type} COMPRESSED CHARACTER SET {charset}",
        lambda r: _text(letters, 4)(r) * r.choice((0, 1, 60)),
    )


def _uuid(_rng: random.Random, name: str) -> RandomColumn:
    return RandomColumn(
        name,
        "UUID",
        lambda r: str(uuid.UUID(bytes=r.randbytes(16), version=r.choice((1, 3, 4, 5)))),
        hidden="uuid",
    )


def _inet(_rng: random.Random, name: str) -> RandomColumn:
    words = (0, 0, 0, 1, 0xFFFF, 0x1234)
    return RandomColumn(
        name,
        "INET6",
        lambda r: ":".join(f"{r.choice(words):x}" for _ in range(8)),
        hidden="inet6",
    )


def _inet4(_rng: random.Random, name: str) -> RandomColumn:
    return RandomColumn(
        name,
        "INET4",
        lambda r: ".".join(str(r.choice((0, 7, 255))) for _ in range(4)),
        hidden="inet4",
    )


_BOTH = (
    *(_integer, _integer, _decimal, _float, _string, _string, _string, _bytes, _binary),
    *(_temporal, _temporal, _labelled, _bit, _year, _json, _geometry),
)
Make = Callable[[random.Random, str], RandomColumn]
# With the first version that has it.
_OWN: dict[Flavor, dict[Make, Version]] = {
    Flavor.MYSQL: {_vector: (9, 0, 0)},
    Flavor.MARIADB: {
        _compressed: (10, 5, 0),
        _fine_decimal: (10, 5, 0),
        _uuid: (10, 7, 0),
        _inet: (10, 5, 0),
        _inet4: (10, 10, 0),
        _late_timestamp: (11, 5, 0),
    },
}
_PLAIN = (_integer, _decimal, _float, _string, _bytes)


def random_column(
    rng: random.Random, flavor: Flavor, version: Version, name: str, *, plain: bool
) -> RandomColumn:
    """A column of any type of the server, or of one that mysql-replication reads alike."""
    own = [make for make, since in _OWN[flavor].items() if since <= version]
    while True:
        kinds: tuple[Make, ...] = _PLAIN if plain else (*_BOTH, *own)
        make = rng.choice(kinds)
        column = make(rng, name)
        if column.is_plain or not plain:
            return column


@dataclass
class RandomTable:
    """A table whose first column `id` tells its rows apart."""

    rng: random.Random
    flavor: Flavor
    version: Version
    plain: bool
    columns: list[RandomColumn] = field(default_factory=list)
    made: int = 0
    hidden: dict[str, str] = field(default_factory=dict)  # the types that a binlog does not show

    def new_column(self) -> RandomColumn:
        """A further column, not yet among the others."""
        self.made += 1
        name = self.rng.choice(("c{}", "C{}", "ü{}", "a b{}")).format(self.made)
        column = random_column(self.rng, self.flavor, self.version, name, plain=self.plain)
        if column.hidden:
            self.hidden[name] = column.hidden
        return column

    def create(self) -> str:
        """The statement that makes the table."""
        self.columns = [self.new_column() for _ in range(self.rng.randint(1, 25))]
        declared = ", ".join(f"`{c.name}` {c.sql_type}" for c in self.columns)
        key = self.rng.choice(("PRIMARY KEY (id)", "UNIQUE (id)"))
        return f"CREATE TABLE t (id INT NOT NULL, {declared}, {key}) CHARACTER SET utf8mb4"

    def alter(self) -> str:
        """A statement that adds, drops or moves a column."""
        kind = self.rng.randrange(3)
        if kind == 0 and len(self.columns) > 1:
            gone = self.columns.pop(self.rng.randrange(len(self.columns)))
            return f"ALTER TABLE t DROP COLUMN `{gone.name}`"
        if kind == 1:
            moved = self.rng.choice(self.columns)
            return f"ALTER TABLE t MODIFY `{moved.name}` {moved.sql_type} FIRST"
        column = self.new_column()
        self.columns.append(column)
        return f"ALTER TABLE t ADD COLUMN `{column.name}` {column.sql_type} AFTER id"

    def insert(self, ids: list[int]) -> tuple[str, list[Any]]:
        """A statement with its parameters: a row for each id."""
        row = "(%s" + "".join(f", {c.placeholder}" for c in self.columns) + ")"
        names = ", ".join(f"`{c.name}`" for c in self.columns)
        values = [v for number in ids for v in (number, *map(self.value, self.columns))]
        return f"INSERT INTO t (id, {names}) VALUES {', '.join([row] * len(ids))}", values

    def update(self, first: int, last: int) -> tuple[str, list[Any]]:
        """A statement that changes some columns of some rows."""
        chosen = self.rng.sample(self.columns, self.rng.randint(1, len(self.columns)))
        changes = ", ".join(f"`{c.name}` = {c.placeholder}" for c in chosen)
        values = [*map(self.value, chosen), first, last]
        return f"UPDATE t SET {changes} WHERE id BETWEEN %s AND %s", values

    def value(self, column: RandomColumn) -> Any:
        """A value for the column, at times NULL."""
        return None if self.rng.random() < 0.1 else column.value(self.rng)

    def select(self) -> str:
        """The statement that shows the table, in the forms that values are compared in."""
        shown = "".join(", " + self._shown(c) for c in self.columns)
        return f"SELECT id{shown} FROM t"

    def _shown(self, column: RandomColumn) -> str:
        if column.sql_type == "JSON" and self.flavor is Flavor.MYSQL:
            return f"CAST(`{column.name}` AS CHAR)"
        return column.select.format(c=f"`{column.name}`")
