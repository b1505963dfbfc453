"""GTID sets of either server family."""

from event_token.gtid_flavor import Flavor, GtidError
from event_token.mariadb_gtid import MariadbGtidSet
from event_token.mysql_gtid import MysqlGtidSet

__all__ = [
    "Flavor",
    "GtidError",
    "GtidSet",
    "MariadbGtidSet",
    "MysqlGtidSet",
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
