"""What is chosen for one cache: defaults and bounds, once, and how values become bytes.

`shardstream.settings` reads the options from a file, and checks the bounds, which are in the types.
The codec of an entry is stored with it, as one byte.
"""

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from caching.protocol.layout import BUCKETS_DEFAULT, BUCKETS_MAX, GROUPS
from event_token.errors import UsageError

# A misspelt setting that is silently ignored would leave a cache unguarded.
_STRICT = ConfigDict(extra="forbid")

OnBehind = Literal["serve", "bypass"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """The choices for one cache, for its clients and its invalidator.

    `buckets`: another number is another, empty cache. `ttl_s`: how long a value lives at most;
    each lives up to 10 % shorter. `key_ranges`: those of its invalidators. `max_behind_s`,
    `on_behind`: whether hits are still returned once the position of one of them has not moved for
    this long. `on_failover`: what the invalidator does with
    a shard's floors when another server begins to write its log. `lease_ms`: how long others wait
    for the one that loads a missing value; 0: nobody waits. `stale_ok_s`: how long a removed value
    is kept for callers that rather take it, marked, than wait; 0: not at all. `batch_ms`,
    `publish_ms`: how long the invalidator gathers changes, and how often it stores its position.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    buckets: Annotated[int, Field(ge=GROUPS, le=BUCKETS_MAX, multiple_of=GROUPS)] = BUCKETS_DEFAULT
    # 30 days: memcached takes anything longer for a date.
    ttl_s: Annotated[int, Field(ge=1, le=2_592_000)] = 3_600
    # Well above the invalidator's publish_ms, or every cache would seem to be behind.
    key_ranges: Annotated[tuple[str, ...], Field(min_length=1)] = ("-",)
    max_behind_s: Annotated[int, Field(ge=2, le=86_400)] = 10
    on_behind: OnBehind = "serve"
    on_failover: Literal["renew", "keep"] = "renew"
    lease_ms: Annotated[int, Field(ge=0, le=10_000)] = 200
    # A day: an older value is no answer.
    stale_ok_s: Annotated[int, Field(ge=0, le=86_400)] = 0
    batch_ms: Annotated[int, Field(ge=0, le=1_000)] = 5
    publish_ms: Annotated[int, Field(ge=50, le=1_000)] = 500


_ID_MAX = 255
# Below: codecs of this package.
_OWN_ID_MIN = 128


@dataclass(frozen=True, slots=True)
class Codec:
    """A pair of functions between values and bytes.

    `number` (128 to 255 for a codec of one's own) is stored with each value: values of another
    codec are not returned, so that changing the codec of a cache is safe.
    """

    number: int
    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]

    def __post_init__(self) -> None:
        """Check the number."""
        if not 0 <= self.number <= _ID_MAX:
            raise UsageError(f"codec {self.name}: its number is {self.number}; it takes 0 to 255")


def codec_named(codec: str | Codec) -> Codec:
    """Return the codec `json`, `msgspec` (MessagePack) or `pickle`; one's own as it is.

    UsageError for an unknown name, a number below 128, or a library that is not installed. Choose
    pickle only where everyone who can write to the store may run code in the application.
    """
    if isinstance(codec, Codec):
        if codec.number < _OWN_ID_MIN:
            raise UsageError(f"codec {codec.name}: its number is {codec.number}; take 128 to 255")
        return codec
    if codec == "json":
        return Codec(0, codec, _to_json, _from_json)
    if codec == "msgspec":
        return _msgspec()
    if codec == "pickle":
        return Codec(2, codec, pickle.dumps, pickle.loads)
    raise UsageError(f"codec {codec!r} is not known: the codecs are json, msgspec and pickle")


def _to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _from_json(text: bytes) -> object:
    # From bytes, json.loads first looks for the encoding.
    return json.loads(text.decode())


def _msgspec() -> Codec:
    try:
        msgpack = import_module("msgspec.msgpack")
    except ImportError as error:
        raise UsageError(
            "the codec msgspec needs an extra: pip install 'shardstream[msgspec]'"
        ) from error
    return Codec(1, "msgspec", msgpack.encode, msgpack.decode)
