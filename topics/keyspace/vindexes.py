"""Vindexes: functions from the value of a sharding column to a keyspace id, as in Vitess.

The ids equal those that Vitess computes for the same values, byte for byte. Producers write them
into records, and resharding selects rows by them.

Vitess's `unicode_loose` vindexes hash a collation key of primary weights:
`collate.New(language.English, collate.Loose)` of golang.org/x/text (CLDR 23). `loose_weights.bin`
holds the keys that its v0.43.0 returns for every code point and contraction, as runs of code points
with equal or consecutive keys; its licence is beside it. Text whose key depends on an order of
combining marks that this module does not implement is refused, because a key that differs from
Vitess's would send the row to another shard.
"""

import hashlib
import unicodedata
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

import xxhash
from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher, modes

from event_token.errors import UsageError
from topics.records.table_shape import Column, ValueKind
from topics.records.vevent import Value

_WEIGHTS_FILE: Final = "loose_weights.bin"


class _Weights:
    """Keys of code points and contractions, and the marks whose order matters."""

    def __init__(self, packed: bytes) -> None:
        raw = zlib.decompress(packed)
        numbers = _Packed(raw)
        self._first: list[int] = []
        self._runs: list[tuple[int, int, int]] = []  # key as a number, its bytes, its step
        code_point = 0
        for _ in range(numbers.next()):
            gap, kind, size = numbers.next(), numbers.next(), numbers.next()
            code_point += gap
            key = int.from_bytes(numbers.take(size), "big")
            self._first.append(code_point)
            self._runs.append((key, size, kind & 1))
            code_point += kind >> 1
        # By the first character: (all further characters, key), the longest one first.
        self.contractions: dict[str, list[tuple[str, bytes]]] = {}
        for _ in range(numbers.next()):
            text = numbers.text()
            self.contractions.setdefault(text[0], []).append((text[1:], numbers.blob()))
        for suffixes in self.contractions.values():
            suffixes.sort(key=lambda pair: -len(pair[0]))
        self.heavy_marks: frozenset[str] = frozenset(numbers.text())

    def key(self, code_point: int) -> bytes:
        """Return the primary weights of one code point."""
        at = bisect_right(self._first, code_point) - 1
        key, size, step = self._runs[at]
        return (key + step * (code_point - self._first[at])).to_bytes(size, "big")


class _Packed:
    """Reads numbers of seven bits per byte, lowest first, and length-prefixed byte strings."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def next(self) -> int:
        number = shift = 0
        while True:
            byte = self._raw[self._at]
            self._at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7

    def take(self, size: int) -> bytes:
        self._at += size
        return self._raw[self._at - size : self._at]

    def blob(self) -> bytes:
        return self.take(self.next())

    def text(self) -> str:
        return self.blob().decode("utf-8")


@cache
def _weights() -> _Weights:
    return _Weights(files(__package__).joinpath(_WEIGHTS_FILE).read_bytes())


def loose_key(text: str) -> bytes:
    """Return the primary collation key of a text without trailing spaces.

    UsageError on text whose combining marks are in an unsupported order.
    """
    weights = _weights()
    text = text.rstrip(" ")
    _require_order(text, weights.heavy_marks)
    return b"".join(_pieces(text, weights))


def _pieces(text: str, weights: _Weights) -> Iterator[bytes]:
    at = 0
    while at < len(text):
        suffixes = weights.contractions.get(text[at])
        if suffixes is None:
            yield weights.key(ord(text[at]))
            at += 1
            continue
        suffix, key = next(
            (pair for pair in suffixes if text.startswith(pair[0], at + 1)),
            ("", b""),
        )
        yield key if suffix else weights.key(ord(text[at]))
        at += 1 + len(suffix)
        _require_no_gap(text, at, suffixes)


def _require_no_gap(text: str, at: int, suffixes: list[tuple[str, bytes]]) -> None:
    """Refuse marks that could combine with the base character across other marks."""
    joining = {char for suffix, _ in suffixes for char in suffix}
    while at < len(text) and _combining(text[at]):
        if text[at] in joining:
            raise _cannot_follow(text, at)
        at += 1


def _require_order(text: str, heavy_marks: frozenset[str]) -> None:
    """Refuse marks that have their own weight and would have to be reordered."""
    if heavy_marks.isdisjoint(text):
        return
    before = 0
    run_begin = 0
    for at, char in enumerate(text):
        combining = _combining(char)
        if not combining:
            run_begin = at + 1
        elif combining < before and not heavy_marks.isdisjoint(text[run_begin : at + 1]):
            raise _cannot_follow(text, at)
        before = combining


def _combining(char: str) -> int:
    """Return the canonical combining class of a character's first part."""
    return unicodedata.combining(unicodedata.normalize("NFD", char)[0])


def _cannot_follow(text: str, at: int) -> UsageError:
    return UsageError(
        f"vindex unicode_loose_md5 cannot take a text with the combining mark "
        f"U+{ord(text[at]):04X} at character {at} after others: normalise it to NFC",
    )


_INTEGERS: Final = frozenset((ValueKind.INT, ValueKind.LONG, ValueKind.UNSIGNED_LONG))
_TEXT: Final = frozenset((ValueKind.STRING, ValueKind.BYTES))

_INT64_MIN: Final = -(2**63)
_UINT64_MAX: Final = 2**64 - 1

# Vitess uses 3DES with a key of zeros, which equals DES with a key of zeros. ECB on whole blocks
# has no state, so one encryptor serves all values.
_NULL_KEY_DES: Final = Cipher(TripleDES(bytes(24)), modes.ECB()).encryptor()  # noqa: S305 - no secret


@dataclass(frozen=True, slots=True)
class Vindex:
    """A function from the value of a sharding column to a keyspace id.

    `takes`: the kinds of column for which it is defined.
    """

    name: str
    takes: frozenset[ValueKind]
    _keyspace_id: Callable[[Value], bytes]

    def keyspace_id(self, value: Value) -> bytes:
        """Return the keyspace id of a value, given as in `topics.records.vevent`.

        UsageError on a value that has none. NULL has one only with `xxhash`, as in Vitess.
        """
        return self._keyspace_id(value)

    @property
    def takes_null(self) -> bool:
        """Whether NULL has a keyspace id."""
        return self.name == "xxhash"

    def check_column(self, column: Column) -> None:
        """Raise UsageError unless the vindex accepts the values of this column."""
        if column.kind not in self.takes:
            kinds = ", ".join(sorted(kind.value for kind in self.takes))
            raise UsageError(
                f"vindex {self.name} cannot take column {column.name} of type "
                f"{column.sql_type}: it takes columns of kind {kinds}",
            )


def vindex_named(name: str) -> Vindex:
    """Return the vindex with this name; UsageError if there is none."""
    found = _VINDEXES.get(name)
    if found is None:
        raise UsageError(
            f"vindex {name!r} is not known: the vindexes are {', '.join(sorted(_VINDEXES))}",
        )
    return found


def _hash(value: Value) -> bytes:
    number = _integer(value, "hash", _INT64_MIN)
    return _NULL_KEY_DES.update((number & _UINT64_MAX).to_bytes(8, "big"))


def _numeric(value: Value) -> bytes:
    return _integer(value, "numeric", 0).to_bytes(8, "big")


def _integer(value: Value, vindex: str, minimum: int) -> int:
    if not isinstance(value, int) or not minimum <= value <= _UINT64_MAX:
        raise _cannot_take(vindex, value, f"a whole number from {minimum} to {_UINT64_MAX}")
    return value


def _xxhash(value: Value) -> bytes:
    # Vitess hashes the text of a value as the server prints it; NULL prints as nothing.
    text = b"" if value is None else str(value) if isinstance(value, int) else value
    return xxhash.xxh64_intdigest(_bytes(text, "xxhash")).to_bytes(8, "little")


def _binary(value: Value) -> bytes:
    return _bytes(value, "binary")


def _unicode_loose_md5(value: Value) -> bytes:
    raw = _bytes(value, "unicode_loose_md5")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _cannot_take("unicode_loose_md5", value, "text") from error
    return hashlib.md5(loose_key(text), usedforsecurity=False).digest()


def _bytes(value: Value, vindex: str) -> bytes:
    if type(value) is str:
        return value.encode()
    if not isinstance(value, bytes):
        raise _cannot_take(vindex, value, "text or bytes")
    return value


def _cannot_take(vindex: str, value: Value, wanted: str) -> UsageError:
    # Messages and logs never contain values.
    shown = "NULL" if value is None else f"this {type(value).__name__}"
    return UsageError(f"vindex {vindex} cannot take {shown}: it takes {wanted}")


_VINDEXES: Final = {
    vindex.name: vindex
    for vindex in (
        Vindex("hash", _INTEGERS, _hash),
        Vindex("numeric", _INTEGERS, _numeric),
        Vindex("xxhash", _INTEGERS | _TEXT, _xxhash),
        Vindex("binary", _TEXT, _binary),
        Vindex("unicode_loose_md5", _TEXT, _unicode_loose_md5),
    )
}
