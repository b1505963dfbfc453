"""What `/status.json` and `/events` say."""

import json
import time
from dataclasses import asdict

from shardstream.commands.copy.progress import copy_json
from shardstream.commands.fleet.words import as_json, headline
from shardstream.status.refresh import FleetState, KeyspaceLook
from topics.fleet.view import KeyspaceView

# The key of the last row copied, and what an operator compares columns with: row values.
_ROW_VALUES = frozenset(("last_key", "rule", "where"))


def state_json(state: FleetState, max_behind_s: float) -> str:
    """Return the state as one line: `number`, `at_us` and `keyspaces`.

    Each keyspace is what `shardstream status --json` prints, without row values and with
    `headline`, `is_held_back`, `stops`, `error`, `age_ms` and `seen_us`; one that has never been
    seen has only these and its name.
    """
    now_s = time.monotonic() if state.is_late else state.turned_s
    keyspaces = [_keyspace(look, now_s, max_behind_s) for look in state.looks]
    return json.dumps({"number": state.number, "at_us": state.at_us, "keyspaces": keyspaces})


def _keyspace(look: KeyspaceLook, now_s: float, max_behind_s: float) -> dict[str, object]:
    view, error = look.view, look.error
    age_ms = None if look.seen_s is None else round((now_s - look.seen_s) * 1_000)
    told: dict[str, object] = {
        "keyspace": look.keyspace,
        "error": error,
        "age_ms": age_ms,
        "seen_us": look.samples[-1].at_us if look.samples else None,
        "stops": [asdict(stop) for stop in look.stops],
    }
    if view is None:
        said = f"cannot be looked at: {error}" if error else "is being looked at"
        return {**told, "headline": f"{look.keyspace}: {said}", "is_held_back": bool(error)}
    said = headline(view, max_behind_s)
    if error:
        said = f"{look.keyspace}: not seen for {(age_ms or 0) / 1_000:.0f} s: {error}"
    is_held_back = bool(error) or view.is_held_back(round(max_behind_s * 1_000))
    return {**_view(view), **told, "headline": said, "is_held_back": is_held_back}


def _view(view: KeyspaceView) -> dict[str, object]:
    found = as_json(view)
    copies = [
        {name: value for name, value in copy_json(shard, copy).items() if name not in _ROW_VALUES}
        for shard, copy in view.copies
    ]
    return {**found, "copies": copies}
