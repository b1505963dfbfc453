"""Which stream a target holds: its keyspace, key range and key scope. Pure.

A target keeps it from the start. Another keyspace or range would bring rows beside those that are
there, or leave some without changes; with another key scope the rows would get other keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.errors import TargetConflict

_KEYSPACE = "shardstream.keyspace"
_KEY_RANGE = "shardstream.keyRange"
_KEY_SCOPE = "shardstream.keyScope"


@dataclass(frozen=True, slots=True)
class Origin:
    """A stream. `key_range`: as `KeyRange` writes it."""

    keyspace: str
    key_range: str = "-"
    key_scope: KeyScope = KeyScope.KEYSPACE

    def properties(self) -> dict[str, str]:
        """Return what a target keeps."""
        return {
            _KEYSPACE: self.keyspace,
            _KEY_RANGE: self.key_range,
            _KEY_SCOPE: self.key_scope.value,
        }

    def check(self, stored: Mapping[str, str], where: str) -> None:
        """TargetConflict unless a target is of this stream; those of 0.1.0 do not tell."""
        for what, name, own in (
            ("keyspace", _KEYSPACE, self.keyspace),
            ("--key-range", _KEY_RANGE, self.key_range),
            ("--key-scope", _KEY_SCOPE, self.key_scope.value),
        ):
            found = key_scope_of(stored) if name == _KEY_SCOPE else stored.get(name, own)
            if found != own:
                raise TargetConflict(
                    f"{where} was begun with {what} {found}, and this query has {own}: continue "
                    f"with {what} {found}, or start a new target"
                )


def key_scope_of(stored: Mapping[str, str]) -> KeyScope:
    """Return the key scope of a target by what it keeps."""
    return KeyScope(stored.get(_KEY_SCOPE, KeyScope.KEYSPACE))
