"""GTID sets of either server family, and GTIDs as operators name them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

from event_token.gtid_flavor import Flavor, GtidError
from event_token.mariadb_gtid import MariadbGtidSet, parse_mariadb_gtid
from event_token.mysql_gtid import MysqlGtidSet

__all__ = [
    "Flavor",
    "GtidError",
    "GtidSet",
    "MariadbGtidSet",
    "MysqlGtidSet",
    "NamedGtids",
    "empty_gtid_set",
    "parse_gtid_set",
]

GtidSet = MysqlGtidSet | MariadbGtidSet


def parse_gtid_set(text: str, flavor: Flavor) -> GtidSet:
    """Parse the text of a set as servers of that family print it; GtidError on bad text."""
    return _class_of(flavor).parse(text)


def empty_gtid_set(flavor: Flavor) -> GtidSet:
    """Return the empty set."""
    return _class_of(flavor)()


def _class_of(flavor: Flavor) -> type[MysqlGtidSet] | type[MariadbGtidSet]:
    match Flavor(flavor):
        case Flavor.MYSQL:
            return MysqlGtidSet
        case Flavor.MARIADB:
            return MariadbGtidSet


@dataclass(frozen=True, slots=True)
class NamedGtids:
    """Sets of MySQL (`uuid:72-73:80`), and lists of MariaDB (`0-1-72,0-1-73`), in any number.

    A position of MariaDB includes all that is before it; a name here is one transaction.
    """

    mysql: MysqlGtidSet
    mariadb: frozenset[str]

    @classmethod
    def parse(cls, texts: Iterable[str]) -> "NamedGtids":
        """Parse each text as one of the two; GtidError on anything else."""
        mysql = MysqlGtidSet()
        mariadb: set[str] = set()
        for text in texts:
            if ":" in text:
                mysql = mysql.union(MysqlGtidSet.parse(text))
                continue
            for part in text.split(","):
                domain, server, number = parse_mariadb_gtid(part.strip())
                mariadb.add(f"{domain}-{server}-{number}")
        return cls(mysql, frozenset(mariadb))

    def union(self, other: "NamedGtids") -> "NamedGtids":
        """What either names."""
        return NamedGtids(self.mysql.union(other.mysql), self.mariadb | other.mariadb)

    def includes(self, text: str) -> bool:
        """Whether all of the GTIDs in a text are named; False if it is not a GTID."""
        try:
            asked = NamedGtids.parse([text])
        except GtidError:
            return False
        return self.mysql.includes(asked.mysql) and self.mariadb >= asked.mariadb

    def each(self) -> Iterator[str]:
        """Each GTID, those of a source in the order of their numbers."""
        for (sid, tag), intervals in self.mysql.servers:
            source = f"{UUID(bytes=sid)}:{tag}" if tag else str(UUID(bytes=sid))
            for first, last in intervals:
                for number in range(first, last + 1):
                    yield f"{source}:{number}"
        found = sorted((parse_mariadb_gtid(gtid) for gtid in self.mariadb), key=_turn)
        yield from (f"{domain}-{server}-{number}" for domain, server, number in found)


def _turn(gtid: tuple[int, int, int]) -> tuple[int, int]:
    return gtid[0], gtid[2]
