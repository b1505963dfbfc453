"""Which stream a target holds: its keyspace, key range and key scope. Pure.

A target keeps it from the start. Another keyspace or range would bring rows beside those that are
there, or leave some without changes; with another key scope the rows would get other keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from event_token import KeyRange
from event_token.errors import UsageError
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.errors import TargetConflict
from spark_consumers.source.options import SourceOptions

_KEYSPACE = "shardstream.keyspace"
_KEY_RANGE = "shardstream.keyRange"
_KEY_SCOPE = "shardstream.keyScope"


@dataclass(frozen=True, slots=True)
class Origin:
    """A stream. `key_range`: as `KeyRange` writes it."""

    keyspace: str
    key_range: str = "-"
    key_scope: KeyScope = KeyScope.KEYSPACE

    @classmethod
    def of(cls, options: SourceOptions) -> "Origin":
        """Return the stream that a query's options name."""
        return cls(options.keyspace, str(options.key_range), options.key_scope)

    def properties(self) -> dict[str, str]:
        """Return what a target keeps."""
        return {
            _KEYSPACE: self.keyspace,
            _KEY_RANGE: self.key_range,
            _KEY_SCOPE: self.key_scope.value,
        }

    def options(self) -> dict[str, str]:
        """Return the options by which a sink is told; `given_origin` reads them."""
        return {
            "keyspace": self.keyspace,
            "keyRange": self.key_range,
            "keyScope": self.key_scope.value,
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

    def is_in(self, stored: Mapping[str, str]) -> bool:
        """Tell whether a target tells its stream; one of 0.1.0 may not."""
        return any(name in stored for name in self.properties())


def origin_of(keyspace: str, options: Mapping[str, str]) -> Origin:
    """Return which stream the options of format `shardstream` name. UsageError: a bad option."""
    return Origin.of(SourceOptions.parse({**options, "keyspace": keyspace}))


def given_origin(options: Any) -> Origin | None:
    """Return the stream that a sink's options name, None if they name none. UsageError."""
    keyspace = options.get("keyspace")
    if keyspace is None:
        return None
    scope = options.get("keyScope", KeyScope.KEYSPACE)
    if scope not in [*KeyScope]:
        raise UsageError(f"option keyScope is {scope!r}: {' or '.join(KeyScope)}")
    return Origin(keyspace, str(KeyRange.parse(options.get("keyRange", "-"))), KeyScope(scope))


def streams_differ(one: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """Return in what two targets' streams differ, None if both tell nothing else than the same."""
    for what, name in (("keyspace", _KEYSPACE), ("key range", _KEY_RANGE)):
        found, wanted = one.get(name), other.get(name)
        if None not in {found, wanted} and found != wanted:
            return f"{what} {found}, and not {wanted}"
    return None


def key_scope_of(stored: Mapping[str, str]) -> KeyScope:
    """Return the key scope of a target by what it keeps."""
    return KeyScope(stored.get(_KEY_SCOPE, KeyScope.KEYSPACE))
