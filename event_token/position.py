"""The position of a reader of the merged stream: one offset per shard, and the frontier."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self, cast

from event_token.errors import UsageError
from event_token.opaque import FieldReader, FieldWriter, OpaqueError, seal, unseal
from event_token.token import SHARD_CHARS_MAX, EventToken, TokenError, read_token, write_token

# The first byte of every opaque position, distinct from a token's. A new layout gets a new byte.
POSITION_VERSION = 0x51

# The version of the JSON form, which checkpoints store.
POSITION_JSON_VERSION = 1

NUMBER_MAX = 2**63 - 1  # offsets and times are signed 64-bit numbers


class PositionError(UsageError):
    """Raised on an invalid position and on text that is not a stream position."""


@dataclass(frozen=True, slots=True)
class ShardPosition:
    """The position of a reader in one shard log.

    `offset` is the next offset to read, `seq` that of the last record read (0 for none), `token`
    the last one read, if any. PositionError when a number is negative.
    """

    offset: int
    seq: int
    token: EventToken | None
    # As a stream position has it, once one has been written.
    _written: bytes | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the numbers."""
        _check_number("offset", self.offset)
        _check_number("seq", self.seq)


def _no_shards() -> Mapping[str, ShardPosition]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The position of a reader of several shards.

    `epoch` counts the reshards that the reader has hopped over. `frontier_us` is the time before
    which everything has been read. `shards` has one entry per shard, read-only and sorted by
    name. PositionError on an invalid value.
    """

    epoch: int
    frontier_us: int
    shards: Mapping[str, ShardPosition] = field(default_factory=_no_shards)

    def __post_init__(self) -> None:
        """Check the values and copy the mapping."""
        _check_number("epoch", self.epoch)
        _check_number("frontier_us", self.frontier_us)
        for shard in self.shards:
            if not 0 < len(shard) <= SHARD_CHARS_MAX:
                raise PositionError(f"shard name '{shard[:SHARD_CHARS_MAX]}' is empty or too long")
        owned = MappingProxyType(dict(sorted(self.shards.items())))
        object.__setattr__(self, "shards", owned)

    def __hash__(self) -> int:
        """Return a hash, which a read-only mapping does not provide."""
        return hash((self.epoch, self.frontier_us, tuple(self.shards.items())))

    def __reduce__(
        self,
    ) -> tuple[type[Self], tuple[int, int, dict[str, ShardPosition]]]:
        """Support pickle and copy, which cannot handle a read-only mapping."""
        return type(self), (self.epoch, self.frontier_us, dict(self.shards))

    def to_string(self) -> str:
        """Return the opaque URL-safe string of the position."""
        writer = FieldWriter()
        try:
            writer.unsigned(self.epoch)
            writer.unsigned(self.frontier_us)
            writer.unsigned(len(self.shards))
            for shard, at in self.shards.items():
                writer.text(shard)
                _write_shard(writer, at)
            return seal(POSITION_VERSION, writer.getvalue())
        except OpaqueError as error:
            raise PositionError(f"a position of {len(self.shards)} shards has {error}") from error

    @classmethod
    def from_string(cls, text: str) -> Self:
        """Parse an opaque string; PositionError unless it is a valid position."""
        try:
            reader = FieldReader(unseal(POSITION_VERSION, text))
            epoch, frontier_us, count = reader.unsigned(), reader.unsigned(), reader.unsigned()
            shards: dict[str, ShardPosition] = {}
            for _ in range(count):
                shard = reader.text()
                if shard in shards:
                    raise OpaqueError(f"it contains shard {shard} twice")
                shards[shard] = _read_shard(reader)
            reader.finish()
        except UsageError as error:
            raise PositionError(f"not a stream position: {error}") from error
        return cls(epoch, frontier_us, shards)

    def to_json_dict(self) -> dict[str, object]:
        """Return the position as plain JSON values, tokens as their opaque strings."""
        return {
            "version": POSITION_JSON_VERSION,
            "epoch": self.epoch,
            "frontier_us": self.frontier_us,
            "shards": {
                shard: {
                    "offset": at.offset,
                    "seq": at.seq,
                    "token": None if at.token is None else at.token.to_string(),
                }
                for shard, at in self.shards.items()
            },
        }

    @classmethod
    def from_json_dict(cls, document: Mapping[str, object]) -> Self:
        """Parse plain JSON values; PositionError unless they are a valid position."""
        fields = _json_object(document, ("version", "epoch", "frontier_us", "shards"), "it")
        if fields["version"] != POSITION_JSON_VERSION:
            raise PositionError(
                f"not a stream position: version {fields['version']!r} instead of "
                f"{POSITION_JSON_VERSION}, written by another release",
            )
        shards = fields["shards"]
        if not isinstance(shards, Mapping):
            raise PositionError("not a stream position: 'shards' is not an object")
        return cls(
            _json_number(fields, "epoch"),
            _json_number(fields, "frontier_us"),
            {str(shard): _shard_from_json(str(shard), at) for shard, at in shards.items()},
        )


def later_of(a: StreamPosition, b: StreamPosition) -> StreamPosition:
    """Return the position up to which everything before `a` and before `b` has been read."""
    if a.epoch < b.epoch:
        a, b = b, a
    shards = {
        shard: _later_shard(at, b.shards[shard]) if shard in b.shards else at
        for shard, at in a.shards.items()
    }
    return replace(a, frontier_us=max(a.frontier_us, b.frontier_us), shards=shards)


def _later_shard(a: ShardPosition, b: ShardPosition) -> ShardPosition:
    return a if a.seq >= b.seq else b


def _check_number(name: str, value: int) -> None:
    if not 0 <= value <= NUMBER_MAX:
        raise PositionError(f"{name} {value} of a stream position is outside 0..{NUMBER_MAX}")


def _write_shard(writer: FieldWriter, at: ShardPosition) -> None:
    written = at._written  # noqa: SLF001 - of this module
    if written is None:
        written = _written_shard(at)
        object.__setattr__(at, "_written", written)
    writer.raw(written)


def _written_shard(at: ShardPosition) -> bytes:
    writer = FieldWriter()
    writer.unsigned(at.offset)
    writer.unsigned(at.seq)
    writer.unsigned(at.token is not None)
    if at.token is not None:
        write_token(writer, at.token)
    return writer.getvalue()


def _read_shard(reader: FieldReader) -> ShardPosition:
    offset, seq, has_token = reader.unsigned(), reader.unsigned(), reader.unsigned()
    if has_token > 1:
        raise OpaqueError("a flag in it is unknown")
    return ShardPosition(offset, seq, read_token(reader) if has_token else None)


def _json_object(value: object, names: tuple[str, ...], where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping) or set(value) != set(names):
        raise PositionError(
            f"not a stream position: {where} is not an object of {', '.join(names)}"
        )
    return cast("Mapping[str, object]", value)


def _json_number(fields: Mapping[str, object], name: str) -> int:
    value = fields[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise PositionError(f"not a stream position: '{name}' is {value!r}, not an integer")
    return value


def _shard_from_json(shard: str, value: object) -> ShardPosition:
    fields = _json_object(value, ("offset", "seq", "token"), f"shard {shard}")
    token = fields["token"]
    if token is not None and not isinstance(token, str):
        raise PositionError(f"not a stream position: the token of shard {shard} is not a string")
    try:
        parsed = None if token is None else EventToken.from_string(token)
    except TokenError as error:
        raise PositionError(f"the token of shard {shard} is broken: {error}") from error
    return ShardPosition(_json_number(fields, "offset"), _json_number(fields, "seq"), parsed)
