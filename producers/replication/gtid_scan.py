"""Scans binlogs for GTIDs and definitions; all other events are skipped by their length."""

import time
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from databases.errors import ServerLost
from event_token import Flavor
from event_token.running_set import RunningMariadbSet, RunningMysqlSet
from producers.decoder.events import event_types as types
from producers.decoder.events.gtid_events import (
    MariadbGtid,
    MysqlGtid,
    read_mariadb_gtid,
    read_mysql_gtid,
    read_tagged_gtid,
)
from producers.decoder.events.payload import uncompress_query
from producers.decoder.events.statements import (
    DEFINITIONS,
    Definition,
    Statement,
    StatementKind,
    query_database,
    query_sql_mode,
    query_statement,
)
from producers.replication.stream import STREAM_SILENCE_S_MAX, ReplicationStream, server_error

_PACKET_HEADER: Final = 4
_PACKET_FULL: Final = 0xFFFFFF
_EVENT_HEADER: Final = 19
_LOG_POS: Final = slice(13, 17)
_ROTATE_POS_BYTES: Final = 8
_GTIDS: Final = frozenset((types.GTID, types.GTID_TAGGED, types.MARIADB_GTID))
_QUERIES: Final = frozenset((types.QUERY, types.MARIADB_QUERY_COMPRESSED))
_WAIT_S: Final = 1.0
_SECOND_US: Final = 1_000_000
_CRC32: Final = 1
_CHECKSUM_BYTES: Final = 4
_ERROR: Final = 255
_EOF: Final = 254

RunningSet = RunningMysqlSet | RunningMariadbSet


@dataclass(frozen=True, slots=True)
class BinlogTransaction:
    """One transaction: `gtid` is (uuid, tag, number) on MySQL, (domain, server, number) else.

    It begins at `binlog_pos` of `binlog_file`.
    """

    gtid: tuple[bytes, str, int] | tuple[int, int, int]
    commit_us: int
    binlog_file: str
    binlog_pos: int

    def __str__(self) -> str:
        """The GTID as the server prints it."""
        source, middle, number = self.gtid
        if isinstance(source, int):
            return f"{source}-{middle}-{number}"
        tag = f"{middle}:" if middle else ""
        return f"{UUID(bytes=source)}:{tag}{number}"

    def add_to(self, running: RunningSet) -> None:
        """Add this transaction to the set."""
        running.add(*self.gtid)  # both are of one family


def transactions(
    stream: ReplicationStream, flavor: Flavor, where: str
) -> Iterator[BinlogTransaction]:
    """Yield the transactions of a stream that ends at the binlogs' end, in binlog order.

    `where` names the stream in messages. Raises ServerLost when the server falls silent, and the
    errors that its error packets stand for.
    """
    for event in _events(stream, _GTIDS, where):
        if event.whole:  # another one is too long for a GTID event
            yield _transaction(event.whole, flavor, event.name, has_checksum=event.has_checksum)


def read_begin_us(stream: ReplicationStream, where: str) -> int:
    """When the server began the file at whose beginning the stream starts, by its own clock."""
    for event in _events(stream, (types.FORMAT_DESCRIPTION,), where):
        return int.from_bytes(event.whole[:4], "little") * _SECOND_US
    raise ServerLost(f"{where}: the file has no beginning")


@dataclass(frozen=True, slots=True)
class _Event:
    """An event of a binlog file; `whole`: with its header, empty if it takes several packets."""

    whole: bytes
    name: str
    has_checksum: bool


def definitions(
    stream: ReplicationStream, flavor: Flavor, where: str, beat: Callable[[], None]
) -> Iterator[tuple[BinlogTransaction, list[Definition | None]]]:
    """Yield the transactions of such a stream with their definitions; None: it cannot be read.

    `beat` is called again and again while bytes are awaited and read.
    """
    before: BinlogTransaction | None = None
    found: list[Definition | None] = []
    for event in _events(stream, _GTIDS | _QUERIES, where, beat):
        if event.whole and event.whole[4] in _GTIDS:
            if before is not None:
                yield before, found
            before = _transaction(event.whole, flavor, event.name, has_checksum=event.has_checksum)
            found = []
            continue
        definition = _definition_in(event)
        if isinstance(definition, Statement):
            continue
        if before is None:
            raise ServerLost(f"{where}: a statement comes before the first GTID")
        if definition is not None or None not in found:
            found.append(definition)
    if before is not None:
        yield before, found


def _definition_in(event: _Event) -> Definition | Statement | None:
    """Return a query event's definition, or its statement if it is none; None: unknown."""
    if not event.whole:
        return None
    end = len(event.whole) - (_CHECKSUM_BYTES if event.has_checksum else 0)
    body = event.whole[_EVENT_HEADER:end]
    if event.whole[4] == types.MARIADB_QUERY_COMPRESSED:
        body = uncompress_query(body)
    statement = Statement(query_statement(body), query_sql_mode(body))
    if statement.kind == StatementKind.DDL:
        return Definition(statement, query_database(body))
    if statement.kind == StatementKind.UNKNOWN or (
        statement.kind == StatementKind.CHANGE and statement.tokens[0].is_word("(", *DEFINITIONS)
    ):
        return None  # CREATE OR REPLACE TABLE ... SELECT takes triggers and keys away as well
    return statement


def _events(
    stream: ReplicationStream,
    kinds: Collection[int],
    where: str,
    beat: Callable[[], None] | None = None,
) -> Iterator[_Event]:
    """Yield the events of these types, up to the binlogs' end."""
    goes_on = False  # this packet continues the event of the one before
    has_checksum = False
    name = ""
    while True:
        _fill(stream, where, beat)
        while stream.end - stream.start >= _PACKET_HEADER:
            begin = stream.start + _PACKET_HEADER
            length = int.from_bytes(stream.buffer[stream.start : begin - 1], "little")
            if begin + length > stream.end:
                break
            stream.start = begin + length
            is_rest, goes_on = goes_on, length == _PACKET_FULL
            if is_rest:
                continue
            kind = stream.buffer[begin]
            if kind:
                if kind == _EOF and length < 9:
                    return
                raise _no_event(bytes(stream.buffer[begin : begin + length]), where)
            event_type = stream.buffer[begin + 5]
            if event_type == types.FORMAT_DESCRIPTION:
                has_checksum = stream.buffer[begin + length - _CHECKSUM_BYTES - 1] == _CRC32
            elif event_type == types.ROTATE:
                name = _rotated_to(bytes(stream.buffer[begin + 1 : begin + length]))
            if event_type in kinds:
                event = b"" if goes_on else bytes(stream.buffer[begin + 1 : begin + length])
                yield _Event(event, name, has_checksum)


def _rotated_to(event: bytes) -> str:
    """The file that a ROTATE names. Of the first it is not known yet whether it has a checksum."""
    checksum = int.from_bytes(event[-_CHECKSUM_BYTES:], "little")
    has_checksum = zlib.crc32(event[:-_CHECKSUM_BYTES]) == checksum
    end = len(event) - (_CHECKSUM_BYTES if has_checksum else 0)
    return event[_EVENT_HEADER + _ROTATE_POS_BYTES : end].decode("utf-8")


def _fill(stream: ReplicationStream, where: str, beat: Callable[[], None] | None) -> None:
    deadline_s = time.monotonic() + STREAM_SILENCE_S_MAX
    while True:
        if beat is not None:
            beat()
        if stream.wait(_WAIT_S) and stream.fill():
            return
        if time.monotonic() > deadline_s:
            raise ServerLost(f"{where}: the server has been silent for {STREAM_SILENCE_S_MAX} s")


def _no_event(packet: bytes, where: str) -> Exception:
    if packet[0] != _ERROR:
        return ServerLost(f"{where}: a packet that is not an event ({packet[:1].hex()})")
    text = packet[3:].decode("utf-8", "replace")
    if text.startswith("#"):
        text = text[6:]  # the SQL state
    return server_error(int.from_bytes(packet[1:3], "little"), text, where)


def _transaction(
    event: bytes, flavor: Flavor, name: str, *, has_checksum: bool
) -> BinlogTransaction:
    event_type = event[4]
    end = len(event) - (_CHECKSUM_BYTES if has_checksum else 0)
    begin_pos = int.from_bytes(event[_LOG_POS], "little") - len(event)
    if flavor is Flavor.MARIADB:
        mariadb = MariadbGtid()
        read_mariadb_gtid(event, _EVENT_HEADER, end, mariadb)
        server = int.from_bytes(event[5:9], "little")
        commit_us = int.from_bytes(event[:4], "little") * _SECOND_US
        gtid = (int(mariadb.domain), server, mariadb.sequence)
        return BinlogTransaction(gtid, commit_us, name, begin_pos)
    mysql = MysqlGtid()
    if event_type == types.GTID_TAGGED:
        read_tagged_gtid(event[_EVENT_HEADER:end], mysql)
    else:
        read_mysql_gtid(event, _EVENT_HEADER, end, mysql)
    tagged = (mysql.sid, mysql.tag, int(mysql.gno))
    return BinlogTransaction(tagged, int(mysql.commit_us), name, begin_pos)
