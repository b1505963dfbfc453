"""Vindexes: functions from the value of a sharding column to a keyspace id, as in Vitess.

The ids equal those that Vitess computes for the same values, byte for byte. Producers write them
into records, and resharding selects rows by them.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import xxhash
from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher, modes

from event_token.errors import UsageError
from topics.keyspace.loose_weights import loose_key
from topics.records.table_shape import Column, ValueKind
from topics.records.vevent import Value

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
