"""Limits of texts: the largest that is accepted, and the next one."""

import pytest

from event_token import (
    EventToken,
    GtidError,
    KeyRange,
    MariadbGtidSet,
    MysqlGtidSet,
    ShardName,
    ShardPosition,
    StreamPosition,
    opaque,
)
from event_token.gtid_flavor import excerpt
from event_token.opaque import OpaqueError

MIB_64 = 67_108_864


def test_a_gtid_set_has_at_most_64_mib() -> None:
    """A larger text than any server prints is refused before it is taken apart."""
    assert MysqlGtidSet.parse(" " * MIB_64).is_empty
    with pytest.raises(GtidError, match="67108865 characters is over 67108864"):
        MysqlGtidSet.parse(" " * (MIB_64 + 1))


def test_an_opaque_string_has_at_most_64_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written can be read; anything larger is refused on both sides."""
    with pytest.raises(OpaqueError, match="characters other than"):
        opaque.unseal(1, " " * MIB_64)
    with pytest.raises(OpaqueError, match="67108865 characters, over 67108864"):
        opaque.unseal(1, " " * (MIB_64 + 1))

    monkeypatch.setattr(opaque, "OPAQUE_CHARS_MAX", 8)
    assert opaque.unseal(1, opaque.seal(1, b"x")) == b"x"
    with pytest.raises(OpaqueError, match="10 characters, over 8"):
        opaque.seal(1, b"xy")


def test_messages_quote_the_beginning_of_a_long_text() -> None:
    """120 characters are shown whole; of more, the first 120 and that there are more."""
    assert excerpt("x" * 120) == "x" * 120
    assert excerpt("x" * 121) == "x" * 120 + "..."


def test_an_empty_part_is_named_as_such() -> None:
    """Two commas in a row are reported as what they are, not as a bad GTID."""
    with pytest.raises(GtidError, match="has an empty part between commas"):
        MariadbGtidSet.parse("0-1-5,,1-1-5")


def test_the_longest_names_are_accepted() -> None:
    """A bound of 32 bytes, a shard of 249 characters and the millionth generation are legal."""
    assert KeyRange.parse(f"{'80' * 32}-{'c0' * 32}").contains(b"\x90")
    assert EventToken.from_string(
        EventToken(2**63 - 1, "x" * 249, MysqlGtidSet()).to_string()
    ) == EventToken(2**63 - 1, "x" * 249, MysqlGtidSet())
    assert ShardName.parse("-.1000000").generation == 1_000_000
    position = StreamPosition(0, 0, {"x" * 249: ShardPosition(1, 1, None)})
    assert StreamPosition.from_string(position.to_string()) == position
