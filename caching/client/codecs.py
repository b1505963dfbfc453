"""How values become bytes. The codec of an entry is stored with it, as one byte."""

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from event_token.errors import UsageError

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
