"""Consistent snapshots of a server, and which transactions they show."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from databases.mariadb_snapshot import SHOW_PLACE, START_SNAPSHOT, snapshot_place
from databases.server_facts import facts_of
from databases.sql import rows
from event_token import Flavor, GtidSet, parse_gtid_set
from event_token.errors import Retry

# The thread behind each GTID of @@gtid_owned.
_OWNER: Final = re.compile(r"#\d+")


@dataclass(frozen=True, slots=True)
class SnapshotPlace:
    """A snapshot shows all of `seen`, and nothing that `executed` lacks."""

    seen: GtidSet
    executed: GtidSet


@contextmanager
def consistent_snapshot(connection: Any, flavor: Flavor) -> Iterator[SnapshotPlace]:
    """Read in one snapshot. Retry if it cannot be told which transactions it shows."""
    snapshot = _mysql_snapshot if flavor is Flavor.MYSQL else _mariadb_snapshot
    with snapshot(connection) as place:
        yield place


@contextmanager
def _mysql_snapshot(connection: Any) -> Iterator[SnapshotPlace]:
    """Between two executed sets.

    A transaction is visible a moment before it is in the executed set: until then it is owned. The
    owned ones are read first, for they move from there to the executed ones.
    """
    facts = facts_of(Flavor.MYSQL)
    seen = facts.moment(connection).executed
    rows(connection, START_SNAPSHOT)
    try:
        [(owned,)] = rows(connection, "SELECT @@GLOBAL.gtid_owned")
        executed = parse_gtid_set(facts.moment(connection).executed, Flavor.MYSQL)
        for text in _OWNER.sub("", str(owned).replace("\n", ",")).split(","):
            if text.strip():
                executed = executed.union(parse_gtid_set(text.strip(), Flavor.MYSQL))
        yield SnapshotPlace(parse_gtid_set(seen, Flavor.MYSQL), executed)
    finally:
        rows(connection, "COMMIT")


@contextmanager
def _mariadb_snapshot(connection: Any) -> Iterator[SnapshotPlace]:
    """At the place in the binlog that the snapshot itself reports."""
    rows(connection, START_SNAPSHOT)
    try:
        place = snapshot_place(rows(connection, SHOW_PLACE))
        [(position,)] = rows(connection, "SELECT BINLOG_GTID_POS(%s, %s)", place)
        if position is None:
            raise Retry(f"the binlog {place[0]} was purged during a snapshot at {place[1]}")
        shown = parse_gtid_set(position, Flavor.MARIADB)
        yield SnapshotPlace(shown, shown)
        if snapshot_place(rows(connection, SHOW_PLACE)) != place:
            raise Retry("the snapshot's position changed between two reads")
    finally:
        rows(connection, "COMMIT")
