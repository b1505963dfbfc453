"""What an event of a shard log does to a cache: keys, every floor, or nothing. Pure."""

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from caching.key_map import CannotJudge, KeyMap
from caching.stores.store import KeyChange
from databases.statements import possible_names
from event_token import EventToken, MariadbGtidSet, StreamPosition
from topics.progress.record import JournalKind
from topics.records.skip_record import Skip
from topics.records.vevent import EventType, VEvent


class FloorAction(Enum):
    """What happens to all floors of a cache."""

    RAISE = "raise"  # a change of every bucket (rule 12)
    RENEW = "renew"  # no value stays in use (rules 10 and 13)


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """The changes of keys, in the order of their logs."""

    changes: tuple[KeyChange, ...]


@dataclass(frozen=True, slots=True)
class AllFloors:
    """A change of all floors, with the reason that is reported to operators."""

    every: FloorAction
    token: EventToken
    reason: str


Effect = KeyChanges | AllFloors

_NO_KEYS: Final = KeyChanges(())
# GTIDs of MySQL (uuid:number, uuid:tag:number) and of MariaDB (domain-server-number).
_MYSQL_GTID: Final = re.compile(r"(?P<server>[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}):.+")
_MARIADB_GTID: Final = re.compile(r"(?P<domain>\d+)-(?P<server>\d+)-\d+")


def effect_of(event: VEvent, keys: KeyMap) -> Effect:
    """Return what an event does. Halts of the KeyMap."""
    where = f"shard {event.shard}, {event.gtid}"
    match event.type:
        case EventType.ROW:
            try:
                touched = sorted(keys.keys_of(event))
            except CannotJudge as error:
                table = f"{event.database}.{event.table}"
                reason = f"{where}: the mapper of {table} cannot tell the keys of a row ({error})"
                return AllFloors(FloorAction.RENEW, event.token, reason)
            return KeyChanges(tuple(KeyChange(key, event.token) for key in touched))
        case EventType.DDL:
            if concerns(event.statement or "", keys):
                reason = f"{where}: DDL on a mapped table"
                return AllFloors(FloorAction.RENEW, event.token, reason)
        case EventType.SKIP:
            skipped = Skip.of(event)
            reason = f"{where}: {skipped.gtids} was skipped ({skipped.reason})"
            return AllFloors(FloorAction.RENEW, event.token, reason)
        case EventType.JOURNAL:
            mark = json.loads(event.statement or "{}")
            if mark.get("kind") == JournalKind.BEGIN:
                reason = f"{where}: BEGIN of reshard {mark.get('reshard_id')}"
                return AllFloors(FloorAction.RAISE, event.token, reason)
        case EventType.LAST_PK | EventType.COPY_COMPLETED:
            pass
    return _NO_KEYS


def concerns(statement: str, keys: KeyMap) -> bool:
    """Return whether a statement may concern a mapped table, by the names in it under any sql_mode.

    A table with the same name in another database counts as well: a statement may name it without
    its database, and an unneeded cold start is better than a value that stays for good.
    """
    names = possible_names(statement)
    tables = {table.casefold() for _, table in keys.tables}
    databases = {database.casefold() for database, _ in keys.tables}
    if tables & names:
        return True
    return "drop" in names and bool({"database", "schema"} & names) and bool(databases & names)


class Failovers:
    """Notices that another server than before writes a shard, from the GTIDs of its log."""

    def __init__(self, position: StreamPosition) -> None:
        """Begin at a position, whose tokens name who has written: MySQL all, MariaDB the last."""
        self._before: dict[str, frozenset[str]] = {}
        self._writer: dict[str, str] = {}
        for shard, at in position.shards.items():
            if at.token is None:
                continue
            if isinstance(at.token.position, MariadbGtidSet):
                for domain, server_id, _ in at.token.position.domains:
                    self._writer[f"{shard}/{domain}"] = str(server_id)
                continue
            for part in str(at.token.position).split(","):
                place, server = _server(part) or ("", "")
                if server:
                    name = f"{shard}/{place}"
                    self._before[name] = self._before.get(name, frozenset()) | {server}

    def notice(self, event: VEvent) -> AllFloors | None:
        """Return what a change of the server does; None if the one before goes on."""
        found = _server(event.gtid) if event.type in {EventType.ROW, EventType.DDL} else None
        if found is None:
            return None
        place, server = found
        name = f"{event.shard}/{place}"
        before, self._writer[name] = self._writer.get(name), server
        if before is None:
            is_new = server not in self._before.get(name, {server})
        else:
            is_new = server != before
        if not is_new:
            return None
        reason = (
            f"shard {event.shard}, {event.gtid}: another server ({server}) writes the shard now; "
            f"values of transactions that the failover lost would stay"
        )
        return AllFloors(FloorAction.RENEW, event.token, reason)


def _server(gtid: str) -> tuple[str, str] | None:
    """Return a GTID's place (MariaDB: its domain) and server; None for another form."""
    if match := _MYSQL_GTID.fullmatch(gtid):
        return "", match["server"].lower()
    if match := _MARIADB_GTID.fullmatch(gtid):
        return match["domain"], match["server"]
    return None
