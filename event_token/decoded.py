"""What an opaque string says: event tokens and stream positions as plain values, for people."""

from datetime import UTC, datetime, timedelta
from typing import Final

from event_token.errors import UsageError
from event_token.opaque import OpaqueError, version_of
from event_token.position import POSITION_VERSION, StreamPosition
from event_token.token import TOKEN_VERSION, EventToken

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_opaque(text: str) -> EventToken | StreamPosition:
    """Return the event token or the stream position that a string is; UsageError otherwise."""
    try:
        version = version_of(text)
    except OpaqueError as error:
        raise UsageError(f"neither an event token nor a stream position: {error}") from error
    if version == TOKEN_VERSION:
        token = EventToken.from_string(text)
        _check_shards(token)
        return token
    if version == POSITION_VERSION:
        position = StreamPosition.from_string(text)
        _check_shards(*(at.token for at in position.shards.values()), *position.shards)
        return position
    raise UsageError(
        f"neither an event token nor a stream position: its version byte is {version}, so it is of "
        "another kind or release"
    )


def _check_shards(*found: EventToken | str | None) -> None:
    """Raise UsageError for names with control characters: a terminal would obey them."""
    for each in found:
        if isinstance(each, EventToken):
            _check_shards(each.shard, each.origin)
        elif each is not None and not each.isprintable():
            raise UsageError(f"it names {each!r}, which is no shard's name")


def token_to_json_dict(token: EventToken) -> dict[str, object]:
    """Return a token as plain JSON values.

    `timestamp_us`: microseconds since the epoch, and `time` the same as text; both are null for a
    token without a time. `gtids`: the executed GTID set. `origin`: another token, or null.
    """
    return {
        "kind": "token",
        "shard": token.shard,
        "timestamp_us": token.timestamp_us,
        "time": None if token.timestamp_us is None else time_text(token.timestamp_us),
        "flavor": token.position.flavor.value,
        "gtids": str(token.position),
        "origin": None if token.origin is None else token_to_json_dict(token.origin),
    }


def position_to_json_dict(position: StreamPosition) -> dict[str, object]:
    """Return a position as plain JSON values, with what its tokens say.

    `frontier_us`: the time before which everything has been read, `frontier` the same as text. By
    shard: `offset` is the next one to read, `seq` that of the last record that was read.
    """
    return {
        "kind": "position",
        "epoch": position.epoch,
        "frontier_us": position.frontier_us,
        "frontier": time_text(position.frontier_us),
        "shards": {
            shard: {
                "offset": at.offset,
                "seq": at.seq,
                "token": None if at.token is None else token_to_json_dict(at.token),
            }
            for shard, at in position.shards.items()
        },
    }


def time_text(at_us: int) -> str:
    """Return microseconds since the epoch as `2026-01-31T12:00:00.123456Z`.

    A time after the year 9999 has no such text: then it is the number of microseconds.
    """
    try:
        moment = _EPOCH + timedelta(microseconds=at_us)
    except OverflowError:
        return f"{at_us} us since 1970"
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
