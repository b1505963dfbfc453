"""A WHERE over one table version, compiled once into Python code.

SQL has three truth values, and a row passes if the WHERE is true. So each condition becomes two
expressions: one for when it is true, one for when it is false. With NULL neither holds.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Context, Decimal
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final

from event_token.errors import UsageError
from producers.filters.conditions import (
    AllOf,
    AnyOf,
    Between,
    ColumnRef,
    Compare,
    Condition,
    In,
    InKeyRange,
    IsNull,
    Like,
    Literal,
    Not,
    RuleError,
)
from topics.keyspace.vindexes import Vindex, vindex_named
from topics.records.table_shape import DECIMAL_DIGITS_MAX, DECIMAL_SCALE_MAX, Column, ValueKind

_DIGITS: Final = re.compile(r"\(([0-6])\)")
_TEMPORAL: Final = frozenset((ValueKind.TIME, ValueKind.DATETIME, ValueKind.TIMESTAMP))


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of the server's table. `collation`: its name, "" for types without one."""

    column: Column
    collation: str = ""
    nullable: bool = True
    # The server's name for a type that the binlog shows as another one (UUID, INET4, INET6); such
    # values have their own comparisons.
    hidden_type: str = ""

    @property
    def name(self) -> str:
        """Its name."""
        return self.column.name

    @property
    def kind(self) -> ValueKind:
        """How its values are encoded."""
        return self.column.kind

    @property
    def second_digits(self) -> int:
        """Fractional digits of a temporal type."""
        declared = _DIGITS.search(self.column.sql_type) if self.kind in _TEMPORAL else None
        return 0 if declared is None else int(declared[1])


@dataclass(frozen=True, slots=True)
class BinaryCollation:
    """A binary collation. `pads`: trailing spaces are ignored. `codec`: of the text it can hold.

    `ordered`: its order is that of Unicode code points.
    """

    name: str
    charset: str
    codec: str
    pads: bool
    ordered: bool = True


_KNOWN: Final = (
    # Numbers as in the table map; MariaDB's NOPAD ones are 1024 higher.
    (46, BinaryCollation("utf8mb4_bin", "utf8mb4", "utf-8", pads=True)),
    (1070, BinaryCollation("utf8mb4_nopad_bin", "utf8mb4", "utf-8", pads=False)),
    (309, BinaryCollation("utf8mb4_0900_bin", "utf8mb4", "utf-8", pads=False)),
    (83, BinaryCollation("utf8mb3_bin", "utf8mb3", "utf-8", pads=True)),
    (1107, BinaryCollation("utf8mb3_nopad_bin", "utf8mb3", "utf-8", pads=False)),
    (65, BinaryCollation("ascii_bin", "ascii", "ascii", pads=True)),
    (1089, BinaryCollation("ascii_nopad_bin", "ascii", "ascii", pads=False)),
    # Ordered by cp1252's bytes.
    (47, BinaryCollation("latin1_bin", "latin1", "latin-1", pads=True, ordered=False)),
    (1071, BinaryCollation("latin1_nopad_bin", "latin1", "latin-1", pads=False, ordered=False)),
)
# Of a column for the keyspace id of a row; no column of a table has this name.
KEYSPACE_ID_NAME: Final = "\0"
BINARY: Final = "binary"
BINARY_ID: Final = 63
BY_NAME: Final = {collation.name: collation for _, collation in _KNOWN}
# `utf8_bin` is the older name of utf8mb3_bin.
_ALIASES: Final = {"utf8_bin": "utf8mb3_bin", "utf8_nopad_bin": "utf8mb3_nopad_bin"}
_NAMES_BY_ID: Final = {number: collation.name for number, collation in _KNOWN}
_IDS_BY_NAME: Final = {collation.name: number for number, collation in _KNOWN}
# Stands for any other collation; no server has this number.
OTHER_ID: Final = 0xFFFF


def collation_named(name: str) -> BinaryCollation | None:
    """Return the collation, None if it cannot be evaluated here."""
    lower = name.lower()
    return BY_NAME.get(_ALIASES.get(lower, lower))


def collation_number(name: str) -> int:
    """Return the table map's number of a collation, OTHER_ID if it cannot be evaluated here."""
    if name == BINARY:
        return BINARY_ID
    lower = name.lower()
    return _IDS_BY_NAME.get(_ALIASES.get(lower, lower), OTHER_ID)


def collation_name(number: int, charset: str) -> str:
    """Return the name of a table map's collation, or of its character set and the number."""
    if number == BINARY_ID:
        return BINARY
    return _NAMES_BY_ID.get(number, f"{charset} collation {number}")


Raw = int | float | str | bytes
Test = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Bounded:
    """A test that is a single Python comparison: `value operator bound`."""

    operator: str
    bound: Raw | Decimal


_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": eq,
    "<=>": eq,
    "<>": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
_PYTHON: Final = {"=": "==", "<=>": "==", "<>": "!="}
_ORDERINGS: Final = frozenset(("<", "<=", ">", ">="))
_INTEGERS: Final = frozenset((ValueKind.INT, ValueKind.LONG, ValueKind.UNSIGNED_LONG))
_BITS: Final = frozenset((ValueKind.BIT, ValueKind.BIT64))
_FLOATS: Final = frozenset((ValueKind.FLOAT, ValueKind.DOUBLE))
_TEXTS: Final = frozenset((ValueKind.STRING, ValueKind.ENUM))
_DATES: Final = frozenset((ValueKind.DATE, ValueKind.DATETIME, ValueKind.TIMESTAMP))
# Servers of both families compare decimal constants of up to 65 digits, 38 of them after the point,
# exactly with every DECIMAL.
_EXACT: Final = Context(prec=2 * DECIMAL_DIGITS_MAX)
# Servers move two-digit years into this century or the last.
_YEARS: Final = range(1901, 2156)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_DATETIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?")
_TIME: Final = re.compile(r"(-?)(\d{2,3}):([0-5]\d):([0-5]\d)(?:\.(\d{1,6}))?")
_TIME_HOURS_MAX: Final = 838
_US_A_DAY: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# The range of TIMESTAMP, less a day at each end, so that the time zone does not matter.
_TIMESTAMPS: Final = (datetime(1970, 1, 2, tzinfo=UTC), datetime(2038, 1, 18, tzinfo=UTC))


def comparison(
    column: SourceColumn, ref: ColumnRef, operator: str, literal: Literal
) -> Test | Bounded:
    """Return `column operator literal` as a predicate. RuleError if it cannot be exact."""
    kind = column.kind
    _check_visible(column)
    compare = _OPERATORS[operator]
    if kind in _TEXTS:
        collation = _collation(column, ref)
        text = _text(column, literal, collation)
        return _compare_text(column, operator, collation, text)
    if ref.collation is not None:
        raise _cannot(column, f"COLLATE {ref.collation} of a column that is not text")
    if kind in _DATES:
        return _compare_dates(column, compare, literal)
    return Bounded(_PYTHON.get(operator, operator), _bound(column, literal))


def membership(column: SourceColumn, ref: ColumnRef, literals: Iterable[Literal]) -> Test:
    """Return `column IN (literals)` as a predicate."""
    _check_visible(column)
    if column.kind in _TEXTS:
        collation = _collation(column, ref)
        texts = frozenset(_stripped(_text(column, each, collation), collation) for each in literals)
        if collation.pads:
            return lambda value: value.rstrip(" ") in texts
        return texts.__contains__
    if column.kind in _DATES:
        if ref.collation is not None:
            raise _cannot(column, f"COLLATE {ref.collation} of a column that is not text")
        tests = [_compare_dates(column, eq, each) for each in literals]
        return lambda value: any(test(value) for test in tests)
    if ref.collation is not None:
        raise _cannot(column, f"COLLATE {ref.collation} of a column that is not text")
    listed = tuple(literals)
    check_numbers(column, listed)
    return frozenset(_bound(column, each) for each in listed).__contains__


def check_numbers(column: SourceColumn, literals: Iterable[Literal]) -> None:
    """Refuse integers mixed with other numbers in IN and BETWEEN of an integer column.

    Servers then compare by each constant's own type, and take 18446744073709551615 for -1.
    """
    if column.kind not in _INTEGERS:
        return
    texts = [literal.text for literal in literals]
    if len({"." in text for text in texts}) > 1:
        raise _cannot(column, "IN or BETWEEN of integers mixed with other numbers")
    if column.kind is ValueKind.UNSIGNED_LONG and any(text.startswith("-") for text in texts):
        raise _cannot(column, "IN or BETWEEN with a number below 0")


def _check_visible(column: SourceColumn) -> None:
    if column.hidden_type:
        raise _cannot(column, f"a comparison of the type {column.hidden_type}")


def _cannot(column: SourceColumn, what: str) -> RuleError:
    return RuleError(
        f"column {column.name} ({column.column.sql_type}): {what} cannot be evaluated exactly as "
        f"the server does, so it is refused"
    )


def _bound(column: SourceColumn, literal: Literal) -> Raw | Decimal:
    """Return the constant as a raw value of a column that is neither text nor a date."""
    kind = column.kind
    if kind is ValueKind.BYTES:
        return _bytes(column, literal)
    if kind is ValueKind.TIME:
        return _time_us(column, literal)
    if literal.kind == "float" and kind in _FLOATS:
        return float(literal.text)
    if literal.kind != "number":
        raise _cannot(column, f"a comparison with {literal.kind} {literal.text!r}")
    number = Decimal(literal.text)
    fraction = len(literal.text.partition(".")[2])
    if len(number.as_tuple().digits) > DECIMAL_DIGITS_MAX or fraction > DECIMAL_SCALE_MAX:
        raise _cannot(
            column,
            f"a comparison with a number of more than {DECIMAL_DIGITS_MAX} digits, or of more than "
            f"{DECIMAL_SCALE_MAX} after the point,",
        )
    if kind in _FLOATS:
        return float(number)
    if kind is ValueKind.DECIMAL:
        return _whole(_EXACT.scaleb(number, column.column.scale))
    if kind in _INTEGERS:
        return _whole(number)
    is_plain = fraction == 0 and number >= 0
    if (kind in _BITS and is_plain) or (kind is ValueKind.YEAR and number in _YEARS and is_plain):
        return int(number)
    raise _cannot(column, f"a comparison with {literal.text}")


def _whole(number: Decimal) -> int | Decimal:
    """Return an int if it is one: ints compare with ints several times faster."""
    whole = int(number)
    return whole if whole == number else number


def _bytes(column: SourceColumn, literal: Literal) -> bytes:
    if column.collation != BINARY:
        raise _cannot(column, "a comparison of text that is kept as bytes")
    if literal.kind == "hex":
        return bytes.fromhex(literal.text if len(literal.text) % 2 == 0 else "0" + literal.text)
    if literal.kind == "text":
        return literal.text.encode()
    raise _cannot(column, f"a comparison with the number {literal.text}")


def _collation(column: SourceColumn, ref: ColumnRef) -> BinaryCollation:
    """Return the collation by which the server compares."""
    own = collation_named(column.collation)
    if ref.collation is None:
        if own is not None:
            return own
        by = f"by {column.collation or 'an unknown collation'}"
    else:
        chosen = collation_named(ref.collation)
        charset = column.collation.split("_")[0].split(" ")[0].replace("utf8mb3", "utf8")
        if chosen is not None and chosen.charset.replace("utf8mb3", "utf8") == charset:
            return chosen
        by = f"by {ref.collation}"
    names = ", ".join(sorted(BY_NAME))
    raise RuleError(
        f"column {column.name} ({column.column.sql_type}): a comparison {by} cannot be evaluated "
        f"exactly as the server does, so it is refused: name a collation of the column's character "
        f"set in the rule ({column.name} COLLATE ...), one of {names}"
    )


def _text(column: SourceColumn, literal: Literal, collation: BinaryCollation) -> str:
    if literal.kind != "text":
        raise _cannot(column, f"a comparison of text with {literal.kind} {literal.text!r}")
    try:
        encoded = literal.text.encode(collation.codec)
    except UnicodeEncodeError as error:
        raise _cannot(
            column, f"a comparison with text that {collation.charset} cannot hold"
        ) from error
    fits = collation.charset != "utf8mb3" or max(literal.text, default="") <= "\uffff"
    # Python's latin-1 has control codes where the servers' has cp1252's letters.
    is_plain = collation.charset != "latin1" or not any(0x80 <= byte < 0xA0 for byte in encoded)
    if not fits or not is_plain:
        raise _cannot(column, f"a comparison with text that {collation.charset} cannot hold")
    return literal.text


def _stripped(text: str, collation: BinaryCollation) -> str:
    return text.rstrip(" ") if collation.pads else text


def _compare_text(
    column: SourceColumn, operator: str, collation: BinaryCollation, text: str
) -> Test | Bounded:
    compare = _OPERATORS[operator]
    if operator not in _ORDERINGS:
        bound = _stripped(text, collation)
        if collation.pads:
            return lambda value: compare(value.rstrip(" "), bound)
        return Bounded(_PYTHON[operator], bound)
    if not collation.ordered:
        raise _cannot(column, f"{operator} by {collation.name}")
    if not collation.pads:
        return Bounded(operator, text)
    size = len(text)

    def padded(value: str) -> bool:
        # The shorter one is padded with spaces: code points below the space sort before it.
        return compare(value.ljust(size), text.ljust(len(value)))

    return padded


def _compare_dates(
    column: SourceColumn, compare: Callable[[Any, Any], bool], literal: Literal
) -> Test:
    """Compare DATE, DATETIME and TIMESTAMP (in UTC) with a date in ISO form."""
    is_date = column.kind is ValueKind.DATE
    if literal.kind != "text" or not (
        _DATE.fullmatch(literal.text) or (not is_date and _DATETIME.fullmatch(literal.text))
    ):
        form = "'2024-12-31'" if is_date else "'2024-12-31 23:59:59'"
        raise _cannot(column, f"a comparison with {literal.text!r} (write {form})")
    try:
        moment = datetime.fromisoformat(literal.text).replace(tzinfo=UTC)
    except ValueError as error:
        what = f"a comparison with {literal.text!r} (a date that does not exist)"
        raise _cannot(column, what) from error
    _check_fraction(column, literal.text)
    if column.kind is ValueKind.TIMESTAMP and not _TIMESTAMPS[0] <= moment <= _TIMESTAMPS[1]:
        what = f"a comparison with {literal.text!r} (beyond or near the limits of TIMESTAMP)"
        raise _cannot(column, what)
    since = moment - _EPOCH
    bound = since.days if is_date else since.days * _US_A_DAY + since.seconds * 10**6
    bound += 0 if is_date else since.microseconds

    def test(value: int | str) -> bool:
        if isinstance(value, str):
            # It does not exist, but the constant does: the dates in front differ, so they decide.
            return compare(value, literal.text)
        return compare(value, bound)

    return test


def _time_us(column: SourceColumn, literal: Literal) -> int:
    found = _TIME.fullmatch(literal.text) if literal.kind == "text" else None
    if found is None or int(found[2]) > _TIME_HOURS_MAX:
        raise _cannot(column, f"a comparison with {literal.text!r} (write '12:34:56')")
    _check_fraction(column, literal.text)
    seconds = (int(found[2]) * 60 + int(found[3])) * 60 + int(found[4])
    us = seconds * 1_000_000 + int((found[5] or "").ljust(6, "0"))
    return -us if found[1] else us


def _check_fraction(column: SourceColumn, text: str) -> None:
    digits = len(text.partition(".")[2])
    if digits > column.second_digits:
        raise _cannot(column, f"a comparison with {digits} digits of a second")


def collation_of_like(column: SourceColumn, ref: ColumnRef, pattern: str) -> BinaryCollation | None:
    """Return the collation by which LIKE compares, None for bytes. Raises RuleError."""
    _check_visible(column)
    if column.kind in _TEXTS:
        collation = _collation(column, ref)
        _text(column, Literal("text", pattern), collation)
        return collation
    if column.kind is ValueKind.BYTES and ref.collation is None:
        _bytes(column, Literal("text", pattern))
        return None
    raise _cannot(column, "LIKE of a column that is neither text nor bytes")


def like_test(pattern: str, escape: str) -> Callable[[str], bool]:
    """Return `value LIKE pattern ESCAPE escape` as a predicate.

    RuleError on an escape character at the end of the pattern, and on one that is a wildcard,
    which servers look at first.
    """
    if escape in {"%", "_"}:
        raise RuleError(f"LIKE with ESCAPE {escape!r}: use a character that is not a wildcard")
    (first, _), *rest = _segments(pattern, escape)
    if not rest:
        return lambda value: first.fullmatch(value) is not None
    *middle, (last, size) = rest

    def test(value: str) -> bool:
        # Each piece between `%` is matched where it first fits: no later place leaves more room.
        found = first.match(value)
        for piece, _ in middle:
            if found is None:
                return False
            found = piece.search(value, found.end())
        begin = len(value) - size
        if found is None or begin < found.end():
            return False
        return last.match(value, begin) is not None

    return test


def bytes_like_test(pattern: str, escape: str) -> Callable[[bytes], bool]:
    """Return the same over bytes: each byte is a character."""
    test = like_test(pattern.encode().decode("latin-1"), escape.encode().decode("latin-1"))
    return lambda value: test(value.decode("latin-1"))


def _segments(pattern: str, escape: str) -> list[tuple[re.Pattern[str], int]]:
    """Return the pieces between `%`, each with its length in characters."""
    pieces: list[list[str]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if escape and character == escape:
            following = next(characters, None)
            if following is None:
                raise RuleError(f"the LIKE pattern {pattern!r} ends with its escape character")
            pieces[-1].append(re.escape(following))
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append("." if character == "_" else re.escape(character))
    return [(re.compile("".join(piece), re.DOTALL), len(piece)) for piece in pieces]


# Takes the values of `Where.columns`, in their order.
Predicate = Callable[..., bool]


@dataclass(frozen=True, slots=True)
class Where:
    """A compiled WHERE: a row passes if `predicate` returns True.

    `columns` are the indexes of the table's columns whose raw values it takes, in this order.
    """

    predicate: Predicate
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Code:
    """A condition as two Python expressions: when it is true, and when it is false."""

    true: str
    false: str


def compile_where(
    condition: Condition, columns: Sequence[SourceColumn], sharding: tuple[str, Vindex] | None
) -> Where:
    """Compile for a table with these columns; `sharding`: its column and vindex in the topology.

    RuleError on a missing column, and on what cannot be evaluated exactly as the server does.
    """
    compiler = _Compiler(columns, sharding)
    code = compiler.compile(condition)
    names = ", ".join(f"v{i}" for i in range(len(compiler.used)))
    try:
        # Built from the pieces below: text of the rule is only in the constants.
        predicate = eval(f"lambda {names}: {code.true}", compiler.constants)  # noqa: S307
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise RuleError("the WHERE is nested too deeply") from error
    return Where(predicate, tuple(compiler.used))


class _Compiler:
    def __init__(
        self, columns: Sequence[SourceColumn], sharding: tuple[str, Vindex] | None
    ) -> None:
        # Column names are the same in any case.
        self._columns: Mapping[str, int] = {c.name.lower(): i for i, c in enumerate(columns)}
        self._all = columns
        self._sharding = sharding
        self.used: list[int] = []
        self.constants: dict[str, Any] = {}

    def compile(self, condition: Condition) -> _Code:
        match condition:
            case AllOf(terms):
                codes = [self.compile(term) for term in terms]
                false = _join("or", [c.false for c in codes])
                return _Code(_join("and", [c.true for c in codes]), false)
            case AnyOf(terms):
                codes = [self.compile(term) for term in terms]
                false = _join("and", [c.false for c in codes])
                return _Code(_join("or", [c.true for c in codes]), false)
            case Not(term):
                code = self.compile(term)
                return _Code(code.false, code.true)
            case Compare(operator, ref, literal):
                value, column = self._column(ref)
                test = self._test(value, comparison(column, ref, operator, literal))
                if operator != "<=>":
                    return _known(value, test)
                true = f"({value} is not None and {test})"
                return _Code(true, f"(not {true})")
            case In(ref, literals):
                value, column = self._column(ref)
                return _known(value, self._test(value, membership(column, ref, literals)))
            case Between(ref, low, high):
                check_numbers(self._column(ref)[1], (low, high))
                return self.compile(AllOf((Compare(">=", ref, low), Compare("<=", ref, high))))
            case Like(ref, pattern, escape):
                return self._like(ref, pattern, escape)
            case IsNull(ref):
                return self._is_null(ref)
            case InKeyRange():
                return self._in_key_range(condition)

    def _column(self, ref: ColumnRef) -> tuple[str, SourceColumn]:
        """Return the name of a column's value in the code, and the column."""
        index = self._columns.get(ref.name.lower())
        if index is None:
            names = ", ".join(c.name for c in self._all if c.name != KEYSPACE_ID_NAME)
            raise RuleError(f"there is no column {ref.name}; there are {names}")
        if index not in self.used:
            self.used.append(index)
        return f"v{self.used.index(index)}", self._all[index]

    def _constant(self, value: object) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def _test(self, value: str, test: Callable[[Any], bool] | Bounded) -> str:
        """Return the code that tests a value that is not NULL."""
        if isinstance(test, Bounded):
            return f"{value} {test.operator} {self._constant(test.bound)}"
        return f"{self._constant(test)}({value})"

    def _like(self, ref: ColumnRef, pattern: str, escape: str) -> _Code:
        value, column = self._column(ref)
        is_bytes = collation_of_like(column, ref, pattern) is None
        test = bytes_like_test(pattern, escape) if is_bytes else like_test(pattern, escape)
        return _known(value, self._test(value, test))

    def _is_null(self, ref: ColumnRef) -> _Code:
        value, column = self._column(ref)
        if column.kind in (ValueKind.DATE, ValueKind.DATETIME) and not column.nullable:
            raise RuleError(
                f"column {column.name} is NOT NULL: servers treat its zero dates as NULL in some "
                f"places, so IS NULL of it is refused"
            )
        return _Code(f"{value} is None", f"{value} is not None")

    def _in_key_range(self, condition: InKeyRange) -> _Code:
        if condition.column is not None:
            name, vindex = condition.column.name, vindex_named(condition.vindex)
        elif self._sharding is not None:
            name, vindex = self._sharding
        else:
            raise RuleError("in_keyrange: the table has no vindex in the topology")
        value, column = self._column(ColumnRef(name))
        try:
            vindex.check_column(column.column)
        except UsageError as error:
            raise RuleError(f"in_keyrange: {error}") from error
        contains = self._constant(condition.key_range.contains)
        true = f"{contains}({self._constant(vindex.keyspace_id)}({value}))"
        # Of NULL in the table's own vindex the row has no place, which stops the shard.
        if condition.column is not None and not vindex.takes_null:
            return _known(value, true)
        return _Code(true, f"(not {true})")


def _known(value: str, test: str) -> _Code:
    """Return a test that NULL neither passes nor fails."""
    return _Code(f"({value} is not None and {test})", f"({value} is not None and not {test})")


def _join(operator: str, expressions: Sequence[str]) -> str:
    return "(" + f" {operator} ".join(expressions) + ")"
