"""GTID positions of MariaDB: `0-1-100,1-2-7`, one `domain-server-sequence` per domain.

A position is a watermark, not a list: `0-1-100` says that in domain 0 everything up to number
100, written by server 1, has been executed. Within a domain the higher number therefore includes
the lower one, regardless of the server. The same number written by two servers means that the
domain has split into two histories, neither of which includes the other.

Laws, per domain (a, b, c are positions):
- `includes` is a partial order up to split domains: reflexive, antisymmetric; transitive on
  positions of one history.
- `union` is the least position that includes both, `intersection` the greatest that both
  include. On a split domain neither exists, and both raise GtidError.
- `subtract(a, b)` keeps a's whole entry in each domain where b does not include it, because no
  position denotes only the numbers between b's and a's. So `a - b` is empty exactly when b
  includes a, and `(a - b) | (a & b) == a` wherever the intersection exists, but `(a - b) & b`
  need not be empty.
"""

import re
from dataclasses import dataclass
from typing import Self

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

_GTID = re.compile(r"([0-9]{1,20})-([0-9]{1,20})-([0-9]{1,20})")

# The server that wrote the number, and the number.
Last = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MariadbGtidSet(GtidSetBase):
    """A MariaDB position. Create it with `parse`, `of` or an operation, never directly.

    `domains` holds `(domain, server, sequence)` sorted by domain, one per domain, so that equal
    positions are equal objects.
    """

    domains: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a position as servers print it; GtidError on anything else."""
        found: dict[int, Last] = {}
        for part in split_parts(text):
            domain, server, sequence = parse_mariadb_gtid(part)
            if domain in found:
                raise GtidError(
                    f"GTID position '{excerpt(text)}' names domain {domain} twice: a position "
                    f"(gtid_binlog_pos, gtid_slave_pos) has one entry per domain",
                )
            found[domain] = (server, sequence)
        return cls.of(found)

    @classmethod
    def of(cls, domains: dict[int, Last]) -> Self:
        """Return the position with these last (server, sequence) pairs per domain."""
        return cls(tuple((domain, *last) for domain, last in sorted(domains.items())))

    @property
    def flavor(self) -> Flavor:
        """Always MARIADB."""
        return Flavor.MARIADB

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been executed."""
        return not self.domains

    def by_domain(self) -> dict[int, Last]:
        """Return the last (server, sequence) of each domain."""
        return {domain: (server, seq) for domain, server, seq in self.domains}

    def __str__(self) -> str:
        """Return the text that MariaDB accepts, domains in ascending order."""
        return ",".join(f"{domain}-{server}-{seq}" for domain, server, seq in self.domains)

    def union(self, other: GtidSetBase) -> "MariadbGtidSet":
        """Return the later entry of each domain; GtidError if a domain has split."""
        joined = self.by_domain()
        for domain, last in self._same_flavor(other).by_domain().items():
            mine = joined.get(domain)
            if mine is None or _further(domain, last, mine):
                joined[domain] = last
        return MariadbGtidSet.of(joined)

    def intersection(self, other: GtidSetBase) -> "MariadbGtidSet":
        """Return the earlier entry of each common domain; GtidError if one has split."""
        theirs = self._same_flavor(other).by_domain()
        common: dict[int, Last] = {}
        for domain, mine in self.by_domain().items():
            last = theirs.get(domain)
            if last is not None:
                common[domain] = last if _further(domain, mine, last) else mine
        return MariadbGtidSet.of(common)

    def subtract(self, other: GtidSetBase) -> "MariadbGtidSet":
        """Return the entries of this position that `other` does not include."""
        theirs = self._same_flavor(other).by_domain()
        return MariadbGtidSet.of(
            {
                domain: mine
                for domain, mine in self.by_domain().items()
                if not _reaches(theirs.get(domain), mine)
            },
        )

    def includes(self, other: GtidSetBase) -> bool:
        """Tell whether this position includes everything that `other` does."""
        mine = self.by_domain()
        theirs = self._same_flavor(other).by_domain()
        return all(_reaches(mine.get(domain), last) for domain, last in theirs.items())

    def contains_gtid(self, gtid_text: str) -> bool:
        """Tell whether the position includes a single GTID such as `0-1-5`."""
        domain, server, seq = parse_mariadb_gtid(gtid_text)
        return _reaches(self.by_domain().get(domain), (server, seq))

    def add_gtid(self, gtid_text: str) -> "MariadbGtidSet":
        """Return the position advanced to a GTID such as `0-1-5`, unchanged if it includes it.

        GtidError if another server wrote the same number as the last of the domain.
        """
        return self.union(MariadbGtidSet((parse_mariadb_gtid(gtid_text),)))

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


def _reaches(mine: Last | None, other: Last) -> bool:
    """Tell whether a domain executed up to `mine` includes `other`."""
    return mine is not None and (mine[1] > other[1] or mine == other)


def _further(domain: int, mine: Last, other: Last) -> bool:
    """Tell whether `mine` is later than `other`; GtidError if the domain has split."""
    if mine[1] == other[1] and mine[0] != other[0]:
        raise GtidError(
            f"domain {domain} has split: servers {mine[0]} and {other[0]} both wrote number "
            f"{mine[1]}: choose the server whose history to keep",
        )
    return mine[1] > other[1]
