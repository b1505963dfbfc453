"""Constants of a WHERE at the edges of what is evaluated exactly."""

import pytest

from event_token.errors import UsageError
from producers.filters.where import (
    BY_NAME,
    SourceColumn,
    collation_name,
    collation_number,
    compile_where,
)
from producers.filters.where_syntax import parse_where
from topics.records.table_shape import Column, ValueKind

MOMENT_US = 1_704_067_199_000_000  # 2023-12-31 23:59:59
COLUMNS = [
    SourceColumn(Column("west", ValueKind.STRING, "char(3)"), "latin1_bin"),
    SourceColumn(Column("code", ValueKind.STRING, "char(3)"), "utf8mb4_bin"),
    SourceColumn(Column("raw", ValueKind.BYTES, "varbinary(9)"), "binary"),
    SourceColumn(Column("at", ValueKind.DATETIME, "datetime(6)")),
    SourceColumn(Column("year", ValueKind.YEAR, "year")),
    SourceColumn(Column("score", ValueKind.DOUBLE, "double")),
    SourceColumn(Column("flags", ValueKind.BIT, "bit(4)")),
    SourceColumn(Column("sjis", ValueKind.BYTES, "varchar(9)"), "sjis_bin"),
    SourceColumn(Column("nopad", ValueKind.STRING, "char(3)"), "utf8mb4_0900_bin"),
    SourceColumn(Column("basic", ValueKind.STRING, "char(3)"), "utf8mb3_bin"),
]


def keeps(where: str, value: object) -> bool:
    """Whether a condition on one column keeps its value."""
    return compile_where(parse_where(where), COLUMNS, None).predicate(value)


def test_no_break_space_is_a_letter_of_latin1() -> None:
    """Only 0x80 to 0x9f mean other letters to the servers."""
    assert keeps("west = '\xa0'", "\xa0")
    with pytest.raises(UsageError, match="text that latin1 cannot hold"):
        keeps("west = '\x9f'", "\x9f")


@pytest.mark.parametrize("where", ["west = 'a\x9f'", "basic = 'a\U0001f600'"])
def test_one_character_beyond_the_character_set_is_enough(where: str) -> None:
    """The rest of the text may be plain."""
    with pytest.raises(UsageError, match=r"text that (latin1|utf8mb3) cannot hold"):
        keeps(where, "a")


@pytest.mark.parametrize("test", ["= 'a'", "IN (x'61')", "LIKE 'a%'"])
def test_text_that_is_kept_as_bytes_is_not_compared(test: str) -> None:
    """Its collation is not that of bytes."""
    with pytest.raises(UsageError, match="a comparison of text that is kept as bytes"):
        keeps(f"sjis {test}", b"a")


def test_text_without_padding_has_an_order() -> None:
    """Trailing spaces count."""
    assert keeps("nopad < 'b'", "a")
    assert not keeps("nopad < 'b'", "b")
    assert keeps("nopad > 'a'", "a ")


def test_numbers_with_an_exponent_are_those_of_floats() -> None:
    """1e3 is 1000 in a DOUBLE; 1000 is too."""
    for number in ("1e3", "1000", "1000.0"):
        assert keeps(f"score = {number}", 1000.0)
        assert not keeps(f"score = {number}", 1000.5)


def test_bits_are_whole_numbers_from_zero() -> None:
    """Others are refused."""
    assert keeps("flags = 0", 0)
    assert keeps("flags = 9", 9)
    for other in ("-1", "0.5", "1.0"):
        with pytest.raises(UsageError, match=f"a comparison with {other}"):
            keeps(f"flags = {other}", 0)


def test_hexadecimal_digits_of_an_odd_number_begin_with_zero() -> None:
    """0x1 is the byte 1, as servers read it."""
    assert keeps("raw = 0x1", b"\1")
    assert keeps("raw = 0x0161", b"\1a")


@pytest.mark.parametrize(
    ("fraction", "us"), [("", 0), (".5", 500_000), (".000001", 1), (".999999", 999_999)]
)
def test_fractions_of_a_second_count(fraction: str, us: int) -> None:
    """A DATETIME(6) is compared to the microsecond."""
    where = f"at > '2023-12-31 23:59:59{fraction}'"

    assert not keeps(where, MOMENT_US + us)
    assert keeps(where, MOMENT_US + us + 1)


def test_a_collation_may_stand_on_either_side() -> None:
    """A constant with a collation that stands first is compared as if it stood last."""
    assert keeps("'a ' COLLATE utf8mb4_bin = code", "a")
    assert keeps("'a' < code COLLATE utf8mb4_bin", "b")


@pytest.mark.parametrize("year", [1901, 2155])
def test_first_and_last_year(year: int) -> None:
    """Years outside of the range of YEAR, and parts of years, are refused."""
    assert keeps(f"year = {year}", year)
    for other in (f"{year}.0", "1900", "2156"):
        with pytest.raises(UsageError, match="a comparison with"):
            keeps(f"year = {other}", year)


def test_collations_are_those_of_the_servers() -> None:
    """Numbers of the table map, and which collations ignore trailing spaces."""
    numbers = {name: collation_number(name) for name in BY_NAME}

    assert numbers == {
        "utf8mb4_bin": 46,
        "utf8mb4_nopad_bin": 46 + 1024,
        "utf8mb4_0900_bin": 309,
        "utf8mb3_bin": 83,
        "utf8mb3_nopad_bin": 83 + 1024,
        "ascii_bin": 65,
        "ascii_nopad_bin": 65 + 1024,
        "latin1_bin": 47,
        "latin1_nopad_bin": 47 + 1024,
    }
    for name, collation in BY_NAME.items():
        assert collation_name(numbers[name], "") == name
        assert collation.pads is not ("nopad" in name or "0900" in name)
        assert collation.ordered is not name.startswith("latin1")


def test_other_collations_have_no_number_of_ours() -> None:
    """`binary` is 63; whatever cannot be evaluated has a number that no server has."""
    assert (collation_number("binary"), collation_name(63, "")) == (63, "binary")
    assert collation_number("UTF8_BIN") == 83
    assert collation_number("utf8mb4_0900_ai_ci") == 65535
    assert collation_name(255, "utf8mb4") == "utf8mb4 collation 255"
