"""GTID sets that grow one transaction at a time and keep their text current.

On the producers' hot path: typed for mypyc, and correct uncompiled too. The text of a set is
`prefix`, the one number that the next transaction changes, and `suffix`. The next GTID of the same
server changes only that number. Any other GTID moves the focus, which formats only the part of the
server concerned.
"""

from bisect import bisect_right
from uuid import UUID

from mypy_extensions import i64

from event_token.gtid_flavor import GtidError
from event_token.mariadb_gtid import (
    DOMAIN_MAX,
    SEQUENCE_MAX,
    SERVER_MAX,
    TRAIL_MAX,
    Last,
    MariadbGtidSet,
    Trail,
)
from event_token.mysql_gtid import GNO_MAX, Interval, MysqlGtidSet, Tsid, check_tag

SID_BYTES = 16


class _Server:
    """The intervals of one server and tag: `firsts[i]` to `lasts[i]`, sorted and disjoint."""

    def __init__(self, intervals: list[Interval]) -> None:
        self.firsts: list[int] = [interval[0] for interval in intervals]
        self.lasts: list[int] = [interval[1] for interval in intervals]
        self.stale: bool = True
        self._text: bytes = b""

    def text(self) -> bytes:
        """Return all intervals as `:1-5:7`, reformatted only after a change."""
        if self.stale:
            self._text = self.format_range(0, len(self.firsts))
            self.stale = False
        return self._text

    def format_range(self, begin: int, end: int) -> bytes:
        """Return the intervals with index in [begin, end) as `:1-5:7`."""
        pieces: list[str] = []
        for at in range(begin, end):
            first = self.firsts[at]
            last = self.lasts[at]
            pieces.append(f":{first}" if first == last else f":{first}-{last}")
        return "".join(pieces).encode("ascii")

    def insert(self, gno: int) -> int:
        """Add gno, merging adjacent intervals; return the index of its interval, -1 on a repeat."""
        at = bisect_right(self.firsts, gno) - 1
        if at >= 0 and gno <= self.lasts[at]:
            return -1
        after = at + 1
        touches_before = at >= 0 and self.lasts[at] + 1 == gno
        touches_after = after < len(self.firsts) and self.firsts[after] == gno + 1
        if touches_before and touches_after:
            self.lasts[at] = self.lasts[after]
            del self.firsts[after]
            del self.lasts[after]
            return at
        if touches_before:
            self.lasts[at] = gno
            return at
        if touches_after:
            self.firsts[after] = gno
            return after
        self.firsts.insert(after, gno)
        self.lasts.insert(after, gno)
        return after


class RunningMysqlSet:
    """A growing MySQL GTID set; its text is `prefix + str(last) + suffix`.

    While the set is empty, `last` is 0 and the text and both parts are empty.
    """

    def __init__(self, start: MysqlGtidSet) -> None:
        """Begin with the GTIDs of `start`."""
        self.prefix: bytes = b""
        self.last: i64 = 0
        self.suffix: bytes = b""
        self._servers: dict[Tsid, _Server] = {}
        self._order: list[Tsid] = []
        # The focus: its server, tag and interval, and the number at which the interval would touch
        # the next one.
        self._sid: bytes = b""
        self._tag: str = ""
        self._at: int = 0
        self._until: i64 = 0
        for tsid, intervals in start.servers:
            self._servers[tsid] = _Server(list(intervals))
            self._order.append(tsid)
        if self._order:
            tsid = self._order[-1]
            self._focus(tsid, len(self._servers[tsid].firsts) - 1)

    def add(self, sid: bytes, tag: str, gno: i64) -> None:
        """Add one GTID: 16 raw uuid bytes, the tag or "", the number (signed, 64 bits).

        Gaps and any order are legal. GtidError on a GTID that the set contains and on an invalid
        one; the set is then unchanged.
        """
        if gno == self.last + 1 and gno < self._until and tag == self._tag and sid == self._sid:
            self.last = gno
        else:
            self._add_elsewhere(sid, tag, gno)

    def text(self) -> bytes:
        """Return the canonical text of the set."""
        if self.last == 0:
            return b""
        return self.prefix + str(self.last).encode("ascii") + self.suffix

    def to_set(self) -> MysqlGtidSet:
        """Return the set as a value."""
        self._write_back()
        found: dict[Tsid, list[Interval]] = {}
        for tsid, server in self._servers.items():
            found[tsid] = list(zip(server.firsts, server.lasts, strict=True))
        return MysqlGtidSet.of(found)

    def _add_elsewhere(self, sid: bytes, tag: str, gno: int) -> None:
        """Add a GTID that is not the next one at the focus, and move the focus there."""
        self._write_back()
        tsid = (sid, tag)
        server = self._servers.get(tsid)
        if server is None:
            _check_server(sid, tag)
        if gno < 1 or gno > GNO_MAX:
            raise GtidError(f"transaction number {gno} of {_name(sid, tag)} is not 1..{GNO_MAX}")
        if server is None:
            server = _Server([])
            self._order.insert(bisect_right(self._order, tsid), tsid)
            self._servers[tsid] = server
        at = server.insert(gno)
        if at < 0:
            raise GtidError(
                f"GTID {_name(sid, tag)}:{gno} comes a second time: the executed set "
                f"contains it, so its transaction is in the log",
            )
        server.stale = True
        self._focus(tsid, at)

    def _write_back(self) -> None:
        """Store the number at the focus in its interval."""
        if self.last == 0:
            return
        server = self._servers[(self._sid, self._tag)]
        if server.lasts[self._at] != self.last:
            server.lasts[self._at] = self.last
            server.stale = True

    def _focus(self, tsid: Tsid, at: int) -> None:
        """Move the focus to interval `at` of a server, and split the text around it."""
        server = self._servers[tsid]
        first = server.firsts[at]
        last = server.lasts[at]
        before: list[bytes] = []
        after: list[bytes] = []
        sid_before = b""
        pieces = before
        for each in self._order:
            if each[0] != sid_before:
                if sid_before:
                    pieces.append(b",")
                pieces.append(str(UUID(bytes=each[0])).encode("ascii"))
                sid_before = each[0]
            if each[1]:
                pieces.append(b":" + each[1].encode("ascii"))
            if each == tsid:
                pieces.append(server.format_range(0, at))
                pieces.append(b":" if first == last else b":" + str(first).encode("ascii") + b"-")
                pieces = after
                pieces.append(server.format_range(at + 1, len(server.firsts)))
            else:
                pieces.append(self._servers[each].text())
        self.prefix = b"".join(before)
        self.suffix = b"".join(after)
        self.last = last
        self._sid, self._tag = tsid
        self._at = at
        # A lone number has no dash in its prefix, so the next one must be handled here again.
        if first == last:
            self._until = 0
        elif at + 1 < len(server.firsts):
            self._until = server.firsts[at + 1] - 1
        else:
            self._until = GNO_MAX + 1


def _check_server(sid: bytes, tag: str) -> None:
    if len(sid) != SID_BYTES:
        raise GtidError(f"a server uuid has {SID_BYTES} bytes, not {len(sid)}: {sid.hex()}")
    check_tag(tag)


def _name(sid: bytes, tag: str) -> str:
    uuid_text = str(UUID(bytes=sid)) if len(sid) == SID_BYTES else sid.hex()
    return f"{uuid_text}:{tag}" if tag else uuid_text


class RunningMariadbSet:
    """An advancing MariaDB position; its text is `prefix + str(last) + suffix`.

    `last` is 0 while the position is empty. Numbers go up to 2**64 - 1, so they are not i64.
    """

    def __init__(self, start: MariadbGtidSet) -> None:
        """Begin at the position `start`; GtidError if a domain of it has branches."""
        self.prefix: bytes = b""
        self.last: int = 0
        self.suffix: bytes = b""
        self._trails: dict[int, list[Last]] = {}
        self._domain: int = -1
        self._server: int = -1
        for domain, trail in start.trails().items():
            self._trails[domain] = list(trail)
        if self._trails:
            self._focus(max(self._trails))

    def add(self, domain: int, server: int, seq: int) -> None:
        """Advance the domain to this GTID; gaps are legal.

        GtidError on a number that is not above the last of the domain and on an invalid one;
        the position is then unchanged.
        """
        if domain == self._domain and server == self._server:
            if seq <= self.last or seq > SEQUENCE_MAX:
                raise self._not_above(domain, server, seq, self.last)
            self.last = seq
        else:
            self._add_elsewhere(domain, server, seq)

    def text(self) -> bytes:
        """Return the canonical text of the position."""
        if self.last == 0:
            return b""
        return self.prefix + str(self.last).encode("ascii") + self.suffix

    def to_set(self) -> MariadbGtidSet:
        """Return the position as a value."""
        self._write_back()
        trails: dict[int, Trail] = {}
        for domain, trail in self._trails.items():
            trails[domain] = tuple(trail)
        return MariadbGtidSet.of_trails(trails)

    def _add_elsewhere(self, domain: int, server: int, seq: int) -> None:
        """Add a GTID of another domain or server than the last one, and move the focus there."""
        self._write_back()
        if not (0 <= domain <= DOMAIN_MAX and 0 <= server <= SERVER_MAX):
            raise GtidError(f"'{domain}-{server}-{seq}' is not a MariaDB GTID: id out of range")
        trail = self._trails.get(domain)
        above = 0 if trail is None else trail[-1][1]
        if seq <= above or seq > SEQUENCE_MAX:
            raise self._not_above(domain, server, seq, above)
        if trail is None:
            trail = []
            self._trails[domain] = trail
        elif trail[-1][0] == server:
            trail.pop()
        trail.append((server, seq))
        if len(trail) > TRAIL_MAX:
            del trail[0]
        self._focus(domain)

    def _not_above(self, domain: int, server: int, seq: int, above: int) -> GtidError:
        return GtidError(
            f"GTID {domain}-{server}-{seq} is not above {above}, the last number of domain "
            f"{domain} (and at most {SEQUENCE_MAX}): a repeat, or two servers write the domain",
        )

    def _write_back(self) -> None:
        """Store the number at the focus in its trail."""
        if self.last != 0:
            self._trails[self._domain][-1] = (self._server, self.last)

    def _focus(self, domain: int) -> None:
        """Move the focus to a domain, and split the text around its last number."""
        before: list[str] = []
        after: list[str] = []
        for each in sorted(self._trails):
            if each <= domain:
                before.extend([f"{each}-{gtid[0]}-{gtid[1]}" for gtid in self._trails[each]])
            else:
                after.extend([f",{each}-{gtid[0]}-{gtid[1]}" for gtid in self._trails[each]])
        last = self._trails[domain][-1]
        before[-1] = f"{domain}-{last[0]}-"
        self.prefix = ",".join(before).encode("ascii")
        self.suffix = "".join(after).encode("ascii")
        self._domain = domain
        self._server = last[0]
        self.last = last[1]
