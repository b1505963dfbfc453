"""The framing of opaque strings: what no token or position would bring to light."""

import pytest

from event_token import EventToken, MysqlGtidSet, PositionError, ShardPosition, StreamPosition
from event_token.opaque import FieldReader, FieldWriter, OpaqueError, seal, unseal
from event_token.position import POSITION_VERSION


def position_of(*fields: int | str, more: bytes = b"") -> StreamPosition:
    """What is read from these fields of a position, behind a right checksum."""
    writer = FieldWriter()
    for field in fields:
        writer.text(field) if isinstance(field, str) else writer.unsigned(field)
    return StreamPosition.from_string(seal(POSITION_VERSION, writer.getvalue() + more))


def test_a_checksum_of_nothing_is_truncated() -> None:
    """The checksum of no bytes is zero, which four zero bytes agree with."""
    with pytest.raises(OpaqueError, match="it is truncated"):
        unseal(0x41, "AAAAAA")


@pytest.mark.parametrize("number", [0, 127, 128, 2**63, 2**64 - 1])
def test_numbers_and_the_rest_come_back(number: int) -> None:
    """A number has up to 64 bits; the rest is what lies behind the last field read."""
    writer = FieldWriter()
    writer.unsigned(number)
    reader = FieldReader(writer.getvalue() + b"abc")

    assert reader.unsigned() == number
    assert reader.rest() == b"abc"
    assert reader.rest() == b""
    reader.finish()


@pytest.mark.parametrize(
    ("number", "written"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (16383, b"\xff\x7f")]
)
def test_numbers_are_as_short_as_they_can_be(number: int, written: bytes) -> None:
    """A number has one form only, so equal tokens are equal strings."""
    writer = FieldWriter()

    writer.unsigned(number)
    assert writer.getvalue() == written


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (b"\xff" * 10, "a number in it does not end"),
        (b"\x80" * 10 + b"\0", "a number in it does not end"),
        (b"\xff" * 9 + b"\x02", "a number in it has over 64 bits"),
        (b"\x80", "a field is missing"),
        (b"", "a field is missing"),
    ],
)
def test_broken_numbers_are_refused(fields: bytes, said: str) -> None:
    """A number that does not end, or has too many bits, is not read as another one."""
    with pytest.raises(OpaqueError, match=said):
        FieldReader(fields).unsigned()


@pytest.mark.parametrize("number", [-1, 2**64])
def test_impossible_numbers_are_not_written(number: int) -> None:
    """Negative numbers and those of more than 64 bits are refused."""
    with pytest.raises(OpaqueError, match="not an unsigned 64-bit number"):
        FieldWriter().unsigned(number)


def test_text_that_is_not_utf8_is_refused() -> None:
    """A name that no string was written for is an OpaqueError, as any broken field is."""
    with pytest.raises(OpaqueError, match="not UTF-8"):
        FieldReader(b"\x01\xff").text()


def test_a_position_is_read_with_all_of_its_fields() -> None:
    """Epoch, frontier and, per shard, name, offset, seq and token, if there is one."""
    expected = StreamPosition(3, 20, {"-80": ShardPosition(5, 4, None)})

    assert position_of(3, 20, 1, "-80", 5, 4, 0) == expected


def test_broken_fields_of_a_position_are_refused() -> None:
    """A shard that comes twice, an unknown flag and further fields are from another release."""
    shard = ("-80", 5, 4, 0)

    with pytest.raises(PositionError, match="contains shard -80 twice"):
        position_of(3, 20, 2, *shard, *shard)
    with pytest.raises(PositionError, match="a flag in it is unknown"):
        position_of(3, 20, 1, "-80", 5, 4, 2, 1, 7, "-80", "")
    with pytest.raises(PositionError, match="1 unexpected bytes at its end"):
        position_of(3, 20, 1, *shard, more=b"\0")


def test_names_that_utf8_cannot_hold_are_refused_by_positions() -> None:
    """A shard name with half a character is refused when the string is made."""
    position = StreamPosition(0, 0, {"\ud800": ShardPosition(1, 1, None)})

    with pytest.raises(PositionError, match="a position of 1 shards has text that UTF-8 cannot"):
        position.to_string()


def test_tokens_of_a_position_are_checked_as_tokens() -> None:
    """The token of a shard comes back with it."""
    token = EventToken(7, "-80", MysqlGtidSet())

    assert position_of(3, 20, 1, "-80", 5, 4, 1, 1, 7, "-80", "").shards["-80"].token == token
