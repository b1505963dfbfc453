"""GTID positions of MariaDB: per domain the last `domain-server-sequence`, and the writers before.

`0-1-100` says that in domain 0 everything up to transaction 100 of server 1 has been executed. It
does not say which server wrote the numbers before, and after a failover that lost transactions that
distinguishes two histories: where server 1 wrote 0-1-4 and 0-1-5 alone, and server 2, which
never got them, went on with 0-2-4, the higher number does not include the lower one. So a position
also holds earlier GTIDs that it knows to be in its history, its *trail*: `0-1-3,0-2-8` is at 0-2-8,
and server 1 wrote number 3. `gtid_binlog_state` has this form; a producer adds to the trail when
the writer of a domain changes.

A position includes `d-s-n` only if the first GTID of its trail with a number of n or above is by
server s. Where the trail does not know, that is not proven, and two such positions are not ordered.
What precedes a GTID in its domain is part of what it stands for (`gtid_strict_mode`, replication
without gaps), so a position includes another one if it includes the last GTID of each domain.

Positions that do not include each other may be joined (`a.union(b)`): a domain then has two
branches, printed as `0-1-5/0-1-3,0-2-4`, which only a history of both would include.

Laws (a, b, c are positions; equal means that each includes the other):
- `includes` is a partial order on positions that know their trails.
- `union` is the least position that includes both; `intersection` is included in both, and is the
  lesser one of two that are ordered.
- `subtract(a, b)` keeps a's last GTID of each domain where b does not include it, because no
  position denotes only the numbers between b's and a's. So `a - b` is empty exactly when b
  includes a.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from event_token.gtid_flavor import (
    Flavor,
    GtidError,
    GtidSetBase,
    excerpt,
    flavor_mismatch,
    parse_number,
    split_parts,
)

DOMAIN_MAX = 2**32 - 1
SERVER_MAX = 2**32 - 1
SEQUENCE_MAX = 2**64 - 1

# Every record carries its position, so a trail names the newest changes of writer alone. What is
# older can no longer be distinguished: it counts to the oldest one that is left.
TRAIL_MAX: Final = 16

_GTID = re.compile(r"([0-9]{1,20})-([0-9]{1,20})-([0-9]{1,20})")

# The server that wrote the number, and the number.
Last = tuple[int, int]
# GTIDs of one history in one domain by rising numbers; no two in a row are by one server.
Trail = tuple[Last, ...]
# Domains and their trails.
Branches = tuple[tuple[int, Trail], ...]


@dataclass(frozen=True, slots=True)
class MariadbGtidSet(GtidSetBase):
    """A MariaDB position. Create it with `parse`, `of` or an operation, never directly.

    `branches` holds `(domain, trail)`, sorted, one per domain unless histories were joined that do
    not include each other.
    """

    branches: Branches = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a position as servers or this class print it; GtidError on anything else."""
        branches: list[tuple[int, Trail]] = []
        for joined in text.split("/"):
            numbers: dict[int, dict[int, int]] = {}
            for part in split_parts(joined):
                domain, server, number = parse_mariadb_gtid(part)
                if numbers.setdefault(domain, {}).setdefault(number, server) != server:
                    raise GtidError(
                        f"GTID position '{excerpt(text)}' names number {number} of domain {domain} "
                        f"twice: in one history only one server wrote it"
                    )
            branches += [(domain, _trail(known)) for domain, known in numbers.items()]
        return cls(tuple(sorted(branches, key=_by_last)))

    @classmethod
    def of_server(cls, position: str, *executed: str) -> "MariadbGtidSet":
        """Return a server's position with the earlier writers that it knows.

        `executed`: its `gtid_binlog_state`, which has the last GTID of each server that it logged,
        and its `gtid_slave_pos`, which is all that one rebuilt from a backup may know. Both may be
        newer than the position, and lack writers. Of two servers that wrote the same number,
        without gtid_strict_mode, the one named later counts.
        """
        numbers: dict[int, dict[int, int]] = {}
        for text in executed:
            for part in split_parts(text):
                domain, server, number = parse_mariadb_gtid(part)
                numbers.setdefault(domain, {})[number] = server
        known = cls.of_trails({domain: _trail(found) for domain, found in numbers.items()})
        return cls.parse(position).knowing(known)

    @classmethod
    def of(cls, domains: Mapping[int, Last]) -> Self:
        """Return the position with these last (server, sequence) pairs, and nothing before them."""
        return cls.of_trails({domain: (last,) for domain, last in domains.items()})

    @classmethod
    def of_trails(cls, domains: Mapping[int, Trail]) -> Self:
        """Return the position with these trails."""
        return cls(tuple(sorted(domains.items())))

    @property
    def flavor(self) -> Flavor:
        """Always MARIADB."""
        return Flavor.MARIADB

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been executed."""
        return not self.branches

    @property
    def domains(self) -> tuple[tuple[int, int, int], ...]:
        """The last `(domain, server, sequence)` of each branch, sorted by domain."""
        return tuple((domain, *trail[-1]) for domain, trail in self.branches)

    def by_domain(self) -> dict[int, Last]:
        """Return the last (server, sequence) of each domain, of branches the highest."""
        return {domain: trail[-1] for domain, trail in self.branches}

    def trails(self) -> dict[int, Trail]:
        """Return the trail of each domain; GtidError if one has branches."""
        found = dict(self.branches)
        if len(found) != len(self.branches):
            raise GtidError(f"'{excerpt(str(self))}' joins two histories: no server has both")
        return found

    def last_gtids(self) -> str:
        """Return the last GTID of each domain, as `gtid_slave_pos` takes it."""
        return str(MariadbGtidSet.of(self.by_domain()))

    def __str__(self) -> str:
        """Return the text: domains in ascending order, the GTIDs of each by rising numbers."""
        if len(self.branches) == 1:
            [(domain, trail)] = self.branches
            return ",".join([f"{domain}-{server}-{number}" for server, number in trail])
        parts: list[list[str]] = []
        counts: dict[int, int] = {}
        for domain, trail in self.branches:
            at = counts[domain] = counts.get(domain, -1) + 1
            if at == len(parts):
                parts.append([])
            parts[at] += [f"{domain}-{server}-{number}" for server, number in trail]
        return "/".join(",".join(texts) for texts in parts)

    def union(self, other: GtidSetBase) -> "MariadbGtidSet":
        """Return what either has executed, with the trails of both."""
        found = list(self.branches)
        for domain, theirs in self._same_flavor(other).branches:
            kept: list[tuple[int, Trail]] = []
            joined = theirs
            for at, mine in found:
                if at != domain:
                    kept.append((at, mine))
                elif _proves(mine, joined[-1]):
                    joined = _merged(mine, joined)
                elif _proves(joined, mine[-1]):
                    joined = _merged(joined, mine)
                else:
                    kept.append((at, mine))
            found = [*kept, (domain, joined)]
        return MariadbGtidSet(tuple(sorted(found, key=_by_last)))

    def intersection(self, other: GtidSetBase) -> "MariadbGtidSet":
        """Return per domain the last GTID, of those that either names, that both include."""
        theirs = self._same_flavor(other)
        common: dict[int, Trail] = {}
        for domain, trail in self.branches + theirs.branches:
            for end in range(len(trail), 0, -1):
                last = trail[end - 1]
                best = common.get(domain)
                if best is not None and best[-1][1] >= last[1]:
                    break
                if _has(self.branches, domain, last) and _has(theirs.branches, domain, last):
                    common[domain] = trail[:end]
                    break
        return MariadbGtidSet.of_trails(common)

    def subtract(self, other: GtidSetBase) -> "MariadbGtidSet":
        """Return the last GTIDs of this position that `other` does not include."""
        theirs = self._same_flavor(other)
        return MariadbGtidSet(
            tuple(
                (domain, trail[-1:])
                for domain, trail in self.branches
                if not _has(theirs.branches, domain, trail[-1])
            ),
        )

    def includes(self, other: GtidSetBase) -> bool:
        """Return whether this position is proven to include everything that `other` does."""
        theirs = self._same_flavor(other)
        for domain, trail in theirs.branches:  # noqa: SIM110 - a generator takes twice as long
            if not _has(self.branches, domain, trail[-1]):
                return False
        return True

    def reaches(self, other: GtidSetBase) -> bool:
        """Return whether the numbers of this position are above the other's, whoever wrote them.

        Or the same ones of the same servers. It is for positions that are known by other means to
        be of one history.
        """
        return self._same_flavor(other).beyond(self).is_empty

    def beyond(self, other: GtidSetBase) -> "MariadbGtidSet":
        """Return the last GTIDs of this position that the other's numbers do not reach."""
        theirs = self._same_flavor(other).by_domain()
        return MariadbGtidSet.of(
            {
                domain: last
                for domain, last in self.by_domain().items()
                if domain not in theirs
                or not (theirs[domain][1] > last[1] or theirs[domain] == last)
            },
        )

    def knowing(self, other: GtidSetBase) -> "MariadbGtidSet":
        """Return this position with what `other` knows of the GTIDs before it.

        Domains in which neither includes the other stay as they are.
        """
        known: list[tuple[int, Trail]] = []
        theirs = self._same_flavor(other).branches
        for domain, mine in self.branches:
            trail = mine
            for at, there in theirs:
                if at == domain and (_proves(there, mine[-1]) or _proves(mine, there[-1])):
                    trail = _merged(trail, there)
            known.append((domain, trail))
        return MariadbGtidSet(tuple(known))

    def at_domain(self, domain: int, other: "MariadbGtidSet") -> "MariadbGtidSet":
        """Return this position with the other's in one domain, absent if it has none there."""
        kept = [branch for branch in self.branches if branch[0] != domain]
        kept += [branch for branch in other.branches if branch[0] == domain]
        return MariadbGtidSet(tuple(sorted(kept, key=_by_last)))

    def contains_gtid(self, gtid_text: str) -> bool:
        """Return whether the position is proven to include a single GTID such as `0-1-5`."""
        domain, server, number = parse_mariadb_gtid(gtid_text)
        return _has(self.branches, domain, (server, number))

    def ends(self) -> list[str]:
        """Return the last GTID of each domain."""
        return [f"{domain}-{server}-{number}" for domain, server, number in self.domains]

    def ends_with(self, gtid_text: str) -> bool:
        """Return whether a GTID is the last one of its domain."""
        return parse_mariadb_gtid(gtid_text) in self.domains

    def add_gtid(self, gtid_text: str) -> "MariadbGtidSet":
        """Return the position after one more transaction, unchanged if it includes it.

        GtidError if its number is not above the last of the domain.
        """
        domain, server, number = parse_mariadb_gtid(gtid_text)
        last = (server, number)
        if _has(self.branches, domain, last):
            return self
        trails = self.trails()
        trail = trails.get(domain, ())
        if trail and trail[-1][1] >= number:
            raise GtidError(
                f"domain {domain} has split: {gtid_text} is not in the history of "
                f"{excerpt(str(self))}, where servers {server} and {trail[-1][0]} both wrote "
                f"numbers up to {number}: choose the server whose history to keep",
            )
        trails[domain] = _merged((last,), trail)
        return MariadbGtidSet.of_trails(trails)

    def _same_flavor(self, other: GtidSetBase) -> "MariadbGtidSet":
        if not isinstance(other, MariadbGtidSet):
            raise flavor_mismatch(self, other)
        return other


def parse_mariadb_gtid(text: str) -> tuple[int, int, int]:
    """Parse one GTID into (domain, server, sequence); GtidError on anything else."""
    match = _GTID.fullmatch(text.strip())
    if match is None:
        raise GtidError(f"'{excerpt(text)}' is not a MariaDB GTID (domain-server-sequence)")
    return (
        parse_number(match[1], 0, DOMAIN_MAX, "domain"),
        parse_number(match[2], 0, SERVER_MAX, "server id"),
        parse_number(match[3], 1, SEQUENCE_MAX, "sequence number"),
    )


def _has(branches: Branches, domain: int, last: Last) -> bool:
    """Return whether one of the branches is known to have the transaction of a domain."""
    for at, trail in branches:  # noqa: SIM110 - a generator takes twice as long
        if at == domain and _proves(trail, last):
            return True
    return False


def _proves(trail: Trail, last: Last) -> bool:
    """Return whether a history with this trail is known to have the transaction."""
    server, number = last
    for writer, reached in trail:
        if reached >= number:
            return writer == server
    return False


def _merged(trail: Trail, other: Iterable[Last]) -> Trail:
    """Return the trail with what another one of the same history knows of the numbers below.

    No history has one number of two servers; from two that contradict each other the lower counts,
    whichever is asked first.
    """
    writers = {number: server for server, number in trail}
    for server, number in other:
        if number < trail[-1][1]:
            writers[number] = min(server, writers.get(number, server))
    return _trail(writers)


def _trail(writers: Mapping[int, int]) -> Trail:
    """Return the trail of these numbers and their servers."""
    found: list[Last] = []
    for number, server in sorted(writers.items()):
        if found and found[-1][0] == server:
            found.pop()
        found.append((server, number))
    return tuple(found[-TRAIL_MAX:])


def _by_last(branch: tuple[int, Trail]) -> tuple[int, int, int]:
    domain, trail = branch
    return domain, trail[-1][1], trail[-1][0]
