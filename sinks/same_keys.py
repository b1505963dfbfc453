"""Keys that have a live row on more than one shard, and when that stops a query. Pure.

A row that moves between shards is there twice for a moment: the one shard has its INSERT before the
other has its DELETE. Two rows that last are another thing: shards that count their keys themselves.
A target shows one row per key, so it would hide the other one in silence.
"""

import json
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sinks.errors import SameKeys
from sinks.rule.policy import OnSameKey

# Keys that a target keeps until their rows are compared again. Of those beyond, none stops a query
# once the kept ones are settled; this number takes half a megabyte of a frontier.
SAME_KEYS_MAX = 10_000
_NAMED_MAX = 3


@dataclass(frozen=True, slots=True, order=True)
class SameKey:
    """A key of a table (`database.table`), as JSON, and the shards that have a live row of it."""

    table: str
    key: str
    shards: tuple[str, ...]


def same_keys_text(keys: Iterable[SameKey]) -> str:
    """Return keys as text, for `same_keys_of`."""
    return json.dumps([[each.table, each.key, each.shards] for each in sorted(keys)])


def same_keys_of(text: str) -> tuple[SameKey, ...]:
    """Return the keys in a text."""
    return tuple(SameKey(table, key, tuple(shards)) for table, key, shards in json.loads(text))


def known_after(
    known: Iterable[SameKey], settled: Collection[tuple[str, str]], found: Iterable[SameKey]
) -> tuple[SameKey, ...]:
    """Return the keys after a batch.

    `settled`: (table, key) of all keys whose rows the batch compared. `found`: those of them that
    have several live rows now.
    """
    left = [each for each in known if (each.table, each.key) not in settled]
    return tuple(sorted({*left, *found})[:SAME_KEYS_MAX])


class SameKeyWatch:
    """Stops a query once a key has had two live rows for longer than a batch.

    The DELETE of a move may come in the batch after the INSERT. Keys that the target had when the
    query started are given time until the query has caught up with that moment: an operator may
    have deleted one of the rows before starting it.
    """

    def __init__(self, where: str, on_same_key: OnSameKey = OnSameKey.STOP) -> None:
        """`where` names the target in the error."""
        self._where = where
        self._is_on = on_same_key is OnSameKey.STOP
        self._started_us = time.time_ns() // 1000
        self._since_us: dict[tuple[str, str], int] | None = None
        self._old: set[tuple[str, str]] = set()
        self._lasting: list[SameKey] = []

    def see(self, frontier_us: int | None, keys: Collection[SameKey]) -> None:
        """Take the keys that the target has at a frontier. SameKeys: some have lasted."""
        if not self._is_on or frontier_us is None:
            return
        known = self._since_us or {}
        since = {(k.table, k.key): known.get((k.table, k.key), frontier_us) for k in keys}
        if self._since_us is None:
            self._old = {*since}
        self._since_us = since
        self._lasting = [k for k in keys if since[k.table, k.key] < frontier_us]
        has_caught_up = frontier_us >= self._started_us
        self._stop([k for k in self._lasting if has_caught_up or (k.table, k.key) not in self._old])

    def end(self) -> None:
        """Take the end of a run that has read everything there was. SameKeys: as `see`."""
        self._stop(self._lasting)

    def _stop(self, keys: Collection[SameKey]) -> None:
        if not keys:
            return
        named = sorted(keys)[:_NAMED_MAX]
        texts = [f"{k.table}, key {k.key}, on shards {' and '.join(k.shards)}" for k in named]
        more = f" and {len(keys) - len(named)} more" if len(keys) > len(named) else ""
        raise SameKeys(
            f"{self._where}: a key has a live row on more than one shard: {'; '.join(texts)}"
            f"{more}. The target shows the newest of them, and would hide the others. Delete all "
            f"but one at the source and start again; or, if each shard counts its keys itself, "
            f"start a new target with --key-scope shard; or accept that the newest row is shown, "
            f"with --on-same-key newest"
        )
