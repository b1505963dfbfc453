"""Keeps tables and histories of a target from going on where they lack changes. Pure.

A query may leave out tables that the target has. These lack its changes for good, so no later query
follows them, and no frontier has them any more.
"""

from collections.abc import Collection, Iterable

from event_token.errors import UsageError
from spark_consumers.current_state.query.frontiers import Frontier
from spark_consumers.current_state.query.layout import place_of

Names = Collection[tuple[str, str]]


def check_kept(
    target: str, newest: Frontier | None, tables: Names | None, histories: Collection[str]
) -> None:
    """UsageError if a query follows a table that lacks changes, or one without its history.

    `tables`: (database, table) of those that it follows, None: all. `histories`: `database.table`
    of those whose history it keeps.
    """
    if newest is None:
        return
    gone = _written(target, (name for name in newest.left_out if _follows(target, name, tables)))
    if gone:
        others = (name for name in newest.visible if _follows(target, name, tables))
        named = " ".join(f"--table {name}" for name in _written(target, others))
        raise UsageError(
            f"{target}: an earlier run left out {', '.join(gone)}, so changes are missing there "
            f"for good. Go on with the others ({named or 'there are none'}), and follow these in a "
            f"new target"
        )
    kept = (name for name in newest.histories if _follows(target, name, tables))
    for name in _written(target, kept):
        if name not in histories:
            raise UsageError(
                f"{target} has the history of {name}, which would miss the changes of this run: "
                f"pass --history {name}"
            )


def left_out_after(target: str, newest: Frontier | None, tables: Names | None) -> frozenset[str]:
    """Return the tables, by their places below the target, that lack changes after a batch."""
    if newest is None:
        return frozenset()
    missed = (name for name in newest.visible if not _follows(target, name, tables))
    return newest.left_out.union(missed)


def _follows(target: str, name: str, tables: Names | None) -> bool:
    place = place_of(target, name)
    return tables is None or (place.database, place.table) in tables


def _written(target: str, names: Iterable[str]) -> list[str]:
    places = (place_of(target, name) for name in names)
    return sorted(f"{place.database}.{place.table}" for place in places)
