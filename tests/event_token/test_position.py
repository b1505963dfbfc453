"""Stream positions: round trips as string and as JSON, what is broken, and immutability."""

import copy
import json
import pickle
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token import EventToken, MariadbGtidSet, PositionError, ShardPosition, StreamPosition
from event_token.opaque import seal
from event_token.position import POSITION_VERSION
from tests.event_token.strategies import URL_SAFE, stream_positions

TOKEN = EventToken(None, "-80", MariadbGtidSet.parse("0-1-7"))
POSITION = StreamPosition(
    1, 20_000, {"80-": ShardPosition(0, 0, None), "-80": ShardPosition(5, 4, TOKEN)}
)


@given(stream_positions)
def test_string_round_trip(position: StreamPosition) -> None:
    """A position comes back from its string."""
    text = position.to_string()

    assert StreamPosition.from_string(text) == position
    assert set(text) <= set(URL_SAFE)


@given(stream_positions)
def test_json_round_trip(position: StreamPosition) -> None:
    """A position comes back from its JSON text, which holds plain values only."""
    text = json.dumps(position.to_json_dict(), allow_nan=False)

    assert StreamPosition.from_json_dict(json.loads(text)) == position


@given(stream_positions, st.data())
def test_one_changed_character_is_refused(position: StreamPosition, data: st.DataObject) -> None:
    """A position with one character changed, or cut off, is no position any more."""
    text = position.to_string()
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(URL_SAFE).filter(lambda letter: letter != text[at]))

    with pytest.raises(PositionError):
        StreamPosition.from_string(text[:at] + other + text[at + 1 :])
    with pytest.raises(PositionError):
        StreamPosition.from_string(text[:at])


@given(st.binary(max_size=40))
def test_sound_frame_with_broken_fields_is_refused(fields: bytes) -> None:
    """Fields that make no sense behind a right checksum raise PositionError."""
    try:
        position = StreamPosition.from_string(seal(POSITION_VERSION, fields))
    except PositionError:
        return
    assert StreamPosition.from_string(position.to_string()) == position


def test_token_is_no_position() -> None:
    """A token handed over for a position is refused by its version byte."""
    with pytest.raises(PositionError, match="version byte"):
        StreamPosition.from_string(TOKEN.to_string())


def test_layout_does_not_drift() -> None:
    """Positions lie in checkpoints: what this release writes, later ones must read."""
    assert POSITION.to_json_dict() == {
        "version": 1,
        "epoch": 1,
        "frontier_us": 20_000,
        "shards": {
            "-80": {"offset": 5, "seq": 4, "token": TOKEN.to_string()},
            "80-": {"offset": 0, "seq": 0, "token": None},
        },
    }
    assert POSITION.to_string() == "UQGgnAECAy04MAUEAQQDLTgwBTAtMS03AzgwLQAAAAyETyo"


def _document(**changed: object) -> dict[str, object]:
    return POSITION.to_json_dict() | changed


@pytest.mark.parametrize(
    "document",
    [
        {},
        _document(version=2),
        _document(more=1),
        _document(epoch=-1),
        _document(epoch=True),
        _document(epoch="1"),
        _document(frontier_us=1.5),
        _document(frontier_us=None),
        _document(frontier_us=2**63),
        _document(shards=[]),
        _document(shards={"": {"offset": 1, "seq": 1, "token": None}}),
        _document(shards={"-": {"offset": 1, "seq": 1}}),
        _document(shards={"-": {"offset": 1, "seq": 1, "token": "x"}}),
        _document(shards={"-": {"offset": 1, "seq": 1, "token": 1}}),
        _document(shards={"-": {"offset": -1, "seq": 1, "token": None}}),
        _document(shards={"-": {"offset": 1, "seq": None, "token": None}}),
        _document(shards={"-": None}),
    ],
)
def test_broken_documents_are_refused(document: dict[str, object]) -> None:
    """A JSON document with anything missing, extra or of another type raises PositionError."""
    with pytest.raises(PositionError):
        StreamPosition.from_json_dict(document)


def test_position_owns_its_shards() -> None:
    """A position does not change with the mapping it was made of, nor by itself."""
    shards = {"80-": ShardPosition(1, 1, None), "-80": ShardPosition(2, 2, None)}
    position = StreamPosition(0, 0, shards)
    shards.clear()

    assert list(position.shards) == ["-80", "80-"]
    assert isinstance(position.shards, MappingProxyType)
    with pytest.raises(AttributeError):
        position.epoch = 1  # type: ignore[misc]  # the point of the test
    with pytest.raises(TypeError):
        position.shards["-80"] = ShardPosition(0, 0, None)  # type: ignore[index]  # likewise


@given(stream_positions)
def test_positions_are_values(position: StreamPosition) -> None:
    """A position is hashable, whatever the order of its shards, and can be pickled and copied."""
    reordered = StreamPosition(
        position.epoch, position.frontier_us, dict(reversed(list(position.shards.items())))
    )

    assert reordered == position
    assert hash(reordered) == hash(position)
    assert pickle.loads(pickle.dumps(position)) == position  # noqa: S301 - our own bytes
    assert copy.deepcopy(position) == position


@pytest.mark.parametrize(("offset", "seq"), [(-1, 0), (0, -1), (2**63, 0), (0, 2**63)])
def test_impossible_shard_positions(offset: int, seq: int) -> None:
    """Offsets and sequence numbers are not negative and fit into 63 bits."""
    with pytest.raises(PositionError):
        ShardPosition(offset, seq, None)
