"""GTID sets of MySQL, with tags and gaps: `uuid:1-5:7,uuid:1-5:tag:1-5`."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Self
from uuid import UUID

from event_token.gtid_flavor import (
    Flavor,
    GtidError,
    GtidSetBase,
    excerpt,
    flavor_mismatch,
    parse_number,
    split_parts,
)

Interval = tuple[int, int]
Intervals = tuple[Interval, ...]


def normalise(intervals: Iterable[Interval]) -> Intervals:
    """Return the canonical form of intervals in any order, touching or overlapping or not."""
    merged: list[Interval] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def intersect(mine: Intervals, other: Intervals) -> Intervals:
    """Return the numbers in both."""
    common: list[Interval] = []
    i = j = 0
    while i < len(mine) and j < len(other):
        first = max(mine[i][0], other[j][0])
        last = min(mine[i][1], other[j][1])
        if first <= last:
            common.append((first, last))
        if mine[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(common)


def subtract(mine: Intervals, other: Intervals) -> Intervals:
    """Return the numbers in `mine` that are not in `other`."""
    left: list[Interval] = []
    j = 0
    for first, last in mine:
        start = first
        while j < len(other) and other[j][1] < start:
            j += 1
        k = j
        while k < len(other) and other[k][0] <= last:
            if start < other[k][0]:
                left.append((start, other[k][0] - 1))
            start = other[k][1] + 1
            k += 1
        if start <= last:
            left.append((start, last))
    return tuple(left)


def includes(mine: Intervals, other: Intervals) -> bool:
    """Return whether `mine` contains all of `other`."""
    i = 0
    for first, last in other:
        while i < len(mine) and mine[i][1] < first:
            i += 1
        if i == len(mine) or mine[i][0] > first or mine[i][1] < last:
            return False
    return True


# The server's bound: GNO_END is 2**63 - 1 and is never assigned.
GNO_MAX = 2**63 - 2

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_TAG = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,31}")  # the server allows 32 characters

# Server uuids whose text is kept: more than a keyspace has servers.
_UUIDS_KEPT = 1_024

# The server that committed and the tag it committed under ("" for none).
Tsid = tuple[bytes, str]


@dataclass(frozen=True, slots=True)
class MysqlGtidSet(GtidSetBase):
    """A set of MySQL GTIDs. Create it with `parse`, `of` or an operation, never directly.

    `servers` holds `((16 raw uuid bytes, tag), intervals)`, sorted by uuid, then tag, without
    empty ones, so that equal sets are equal objects.
    """

    servers: tuple[tuple[Tsid, Intervals], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a set as servers print it; GtidError on anything else."""
        found: dict[Tsid, list[Interval]] = {}
        for part in split_parts(text):
            _parse_part(part, found)
        return cls.of(found)

    @classmethod
    def of(cls, servers: dict[Tsid, list[Interval]]) -> Self:
        """Return the set of these intervals, in any order, overlapping or not."""
        return cls(
            tuple(
                (tsid, normalise(intervals))
                for tsid, intervals in sorted(servers.items())
                if intervals
            ),
        )

    @property
    def flavor(self) -> Flavor:
        """Always MYSQL."""
        return Flavor.MYSQL

    @property
    def is_empty(self) -> bool:
        """Whether the set is empty."""
        return not self.servers

    def __str__(self) -> str:
        """Return the text as MySQL prints it, without line breaks."""
        pieces: list[str] = []
        sid_before = b""
        for (sid, tag), intervals in self.servers:
            if sid != sid_before:
                pieces.append(f"{',' if pieces else ''}{_uuid_text(sid)}")
                sid_before = sid
            if tag:
                pieces.append(f":{tag}")
            pieces.extend(
                f":{first}" if first == last else f":{first}-{last}" for first, last in intervals
            )
        return "".join(pieces)

    def union(self, other: GtidSetBase) -> "MysqlGtidSet":
        """Return the GTIDs in either set."""
        theirs = self._same_flavor(other)
        joined: dict[Tsid, list[Interval]] = {}
        for tsid, intervals in self.servers + theirs.servers:
            joined.setdefault(tsid, []).extend(intervals)
        return MysqlGtidSet.of(joined)

    def intersection(self, other: GtidSetBase) -> "MysqlGtidSet":
        """Return the GTIDs in both sets."""
        return self._by_server(other, intersect)

    def subtract(self, other: GtidSetBase) -> "MysqlGtidSet":
        """Return the GTIDs of this set that are not in `other`."""
        return self._by_server(other, subtract)

    def includes(self, other: GtidSetBase) -> bool:
        """Return whether this set contains all of `other`."""
        theirs = self._same_flavor(other)
        mine = dict(self.servers)
        for tsid, intervals in theirs.servers:  # noqa: SIM110 - a generator takes twice as long
            if not includes(mine.get(tsid, ()), intervals):
                return False
        return True

    def reaches(self, other: GtidSetBase) -> bool:
        """Return the same as `includes`: of MariaDB's positions it compares the numbers alone."""
        return self.includes(other)

    def beyond(self, other: GtidSetBase) -> "MysqlGtidSet":
        """Return the same as `subtract`, likewise."""
        return self.subtract(other)

    def contains_gtid(self, gtid_text: str) -> bool:
        """Return whether the set contains a GTID such as `uuid:5` or `uuid:tag:5`."""
        sid, tag, gno = parse_mysql_gtid(gtid_text)
        return includes(dict(self.servers).get((sid, tag), ()), ((gno, gno),))

    def ends(self) -> list[str]:
        """Return the last GTID of each interval."""
        return [
            f"{_uuid_text(sid)}:{tag}:{last}" if tag else f"{_uuid_text(sid)}:{last}"
            for (sid, tag), intervals in self.servers
            for _, last in intervals
        ]

    def ends_with(self, gtid_text: str) -> bool:
        """Return whether a GTID of the set is the last one of an interval."""
        sid, tag, gno = parse_mysql_gtid(gtid_text)
        return any(last == gno for _, last in dict(self.servers).get((sid, tag), ()))

    def add_gtid(self, gtid_text: str) -> "MysqlGtidSet":
        """Return the set with a GTID such as `uuid:5` or `uuid:tag:5` added."""
        sid, tag, gno = parse_mysql_gtid(gtid_text)
        return self.union(MysqlGtidSet((((sid, tag), ((gno, gno),)),)))

    def _same_flavor(self, other: GtidSetBase) -> "MysqlGtidSet":
        if not isinstance(other, MysqlGtidSet):
            raise flavor_mismatch(self, other)
        return other

    def _by_server(
        self,
        other: GtidSetBase,
        combine: Callable[[Intervals, Intervals], Intervals],
    ) -> "MysqlGtidSet":
        theirs = dict(self._same_flavor(other).servers)
        combined = (
            (tsid, combine(intervals, theirs.get(tsid, ()))) for tsid, intervals in self.servers
        )
        return MysqlGtidSet(tuple((tsid, intervals) for tsid, intervals in combined if intervals))


def parse_mysql_gtid(text: str) -> tuple[bytes, str, int]:
    """Parse one GTID into (16 raw uuid bytes, tag or "", gno); GtidError on anything else."""
    fields = text.strip().split(":")
    tag = ""
    if len(fields) == len(("uuid", "tag", "gno")):
        tag = _parse_tag(fields.pop(1))
    if len(fields) != len(("uuid", "gno")):
        raise GtidError(f"'{excerpt(text)}' is not one MySQL GTID (uuid:5 or uuid:tag:5)")
    return _parse_uuid(fields[0]), tag, parse_number(fields[1], 1, GNO_MAX, "transaction number")


def check_tag(tag: str) -> None:
    """Raise GtidError unless tag is "" or, as servers print it, in lower case."""
    if tag and (_TAG.fullmatch(tag) is None or tag != tag.lower()):
        raise GtidError(f"'{excerpt(tag)}' is not a GTID tag in lower case")


def _parse_part(part: str, found: dict[Tsid, list[Interval]]) -> None:
    """Add the intervals of `uuid:1-5:tag:1-3:7` to found; a tag applies up to the next one."""
    uuid_text, *fields = (field.strip() for field in part.split(":"))
    sid = _parse_uuid(uuid_text)
    intervals: list[Interval] | None = None
    tag = ""
    for field in fields:
        if not field[:1].isdecimal():
            if tag and intervals is None:
                raise GtidError(f"tag '{tag}' in '{excerpt(part)}' has no interval")
            tag, intervals = _parse_tag(field), None
        else:
            if intervals is None:
                intervals = found.setdefault((sid, tag), [])
            intervals.append(_parse_interval(field))
    if intervals is None:
        raise GtidError(f"'{excerpt(part)}' ends without an interval (uuid:1-5 or uuid:tag:1-5)")


@lru_cache(_UUIDS_KEPT)
def _uuid_text(sid: bytes) -> str:
    return str(UUID(bytes=sid))


@lru_cache(_UUIDS_KEPT)
def _parse_uuid(text: str) -> bytes:
    if _UUID.fullmatch(text) is None:
        raise GtidError(f"'{excerpt(text)}' is not a server uuid")
    return UUID(text).bytes


def _parse_tag(text: str) -> str:
    if _TAG.fullmatch(text) is None:
        raise GtidError(f"'{excerpt(text)}' is neither an interval nor a GTID tag")
    return text.lower()


def _parse_interval(text: str) -> Interval:
    first_text, dash, last_text = (field.strip() for field in text.partition("-"))
    first = parse_number(first_text, 1, GNO_MAX, "transaction number")
    last = parse_number(last_text, 1, GNO_MAX, "transaction number") if dash else first
    if last < first:
        raise GtidError(f"interval '{excerpt(text)}' ends before it begins")
    return (first, last)
