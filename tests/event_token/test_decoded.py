"""What opaque strings say, as plain values."""

import json

import pytest
from hypothesis import given

from event_token import (
    EventToken,
    MysqlGtidSet,
    ShardPosition,
    StreamPosition,
    UsageError,
    parse_gtid_set,
)
from event_token.decoded import (
    parse_opaque,
    position_to_json_dict,
    time_text,
    token_to_json_dict,
)
from event_token.opaque import seal
from event_token.position import POSITION_VERSION
from event_token.token import TOKEN_VERSION
from tests.event_token.strategies import event_tokens, stream_positions


def token_of(said: object) -> EventToken:
    """The token that these plain values describe."""
    assert isinstance(said, dict)
    origin = None if said["origin"] is None else token_of(said["origin"])
    position = parse_gtid_set(said["gtids"], said["flavor"])
    return EventToken(said["timestamp_us"], said["shard"], position, origin)


@given(event_tokens)
def test_a_token_is_told_whole(token: EventToken) -> None:
    """Its string is known for a token, and the plain values have everything in it."""
    assert parse_opaque(token.to_string()) == token
    assert token_of(json.loads(json.dumps(token_to_json_dict(token)))) == token


@given(stream_positions)
def test_a_position_is_told_whole(position: StreamPosition) -> None:
    """Likewise a position, with offset, seq and token of each shard."""
    assert parse_opaque(position.to_string()) == position
    said = json.loads(json.dumps(position_to_json_dict(position)))
    assert (said["epoch"], said["frontier_us"]) == (position.epoch, position.frontier_us)
    assert said["shards"].keys() == position.shards.keys()
    for shard, at in position.shards.items():
        found = said["shards"][shard]
        assert (found["offset"], found["seq"]) == (at.offset, at.seq)
        assert (None if found["token"] is None else token_of(found["token"])) == at.token


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "characters other than"),
        ("not one", "characters other than"),
        (EventToken(1, "-", MysqlGtidSet()).to_string()[:-2], "truncated or changed"),
        (StreamPosition(0, 0).to_string() + "A", "truncated or changed"),
        (seal(0x57, b"\0"), "its version byte is 87"),
        (seal(TOKEN_VERSION, b""), "a field is missing"),
        (seal(POSITION_VERSION, b""), "a field is missing"),
    ],
)
def test_other_text_is_one_clear_error(text: str, reason: str) -> None:
    """Damaged strings, those of another kind, and those with the wrong fields."""
    with pytest.raises(UsageError, match=rf"^(neither|not) an? [^\n]*{reason}"):
        parse_opaque(text)


@pytest.mark.parametrize(
    "found",
    [
        EventToken(1, "\x1b[2J", MysqlGtidSet()),
        EventToken(1, "-", MysqlGtidSet(), EventToken(1, "-\n", MysqlGtidSet())),
        StreamPosition(1, 1, {"\x1b[2J": ShardPosition(0, 0, None)}),
    ],
)
def test_a_name_that_no_shard_has_is_refused(found: EventToken | StreamPosition) -> None:
    """Anybody can make such a string, and its name would go to a terminal; it is printed quoted."""
    with pytest.raises(UsageError, match="which is no shard's name") as caught:
        parse_opaque(found.to_string())
    assert "\x1b" not in str(caught.value)


def test_a_time_is_text_in_utc() -> None:
    """To the microsecond; a time that no calendar has is told as a number."""
    assert time_text(1_769_860_800_123_456) == "2026-01-31T12:00:00.123456Z"
    assert time_text(2**63 - 1) == "9223372036854775807 us since 1970"
