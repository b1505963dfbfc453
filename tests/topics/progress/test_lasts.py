"""Which transactions a log's progress keeps, to be compared with a server's."""

import pytest

from event_token import Flavor, parse_gtid_set
from topics.progress.record import LASTS_MAX, LastTransaction, lasts_of

U = "00000000-0000-0000-0000-00000000000a"


def last(gtid: str, at_us: int = 0) -> LastTransaction:
    """A transaction somewhere."""
    return LastTransaction(gtid, at_us, "1", "binlog.000001", 4)


def kept(flavor: Flavor, position: str, *gtids: str) -> list[str]:
    """The GTIDs that are kept of what was read in this order."""
    found = lasts_of([last(gtid) for gtid in gtids], parse_gtid_set(position, flavor))
    return [each.gtid for each in found]


def test_the_last_of_each_domain_is_kept_with_the_newest_at_the_end() -> None:
    """One that the domain has left behind is not."""
    read = ("0-1-5", "7-2-1", "0-1-6", "7-2-2", "0-1-7")

    assert kept(Flavor.MARIADB, "0-1-7,7-2-2", *read) == ["7-2-2", "0-1-7"]


def test_the_last_of_each_interval_is_kept_and_the_newest_one_anyway() -> None:
    """MySQL: numbers may be left out, and filled later."""
    read = (f"{U}:2", f"{U}:5", f"{U}:t:1", f"{U}:4")

    assert kept(Flavor.MYSQL, f"{U}:1-2:4-5:t:1", *read) == [
        f"{U}:2",
        f"{U}:5",
        f"{U}:t:1",
        f"{U}:4",
    ]
    assert kept(Flavor.MYSQL, f"{U}:1-5:t:1", *read) == [f"{U}:5", f"{U}:t:1", f"{U}:4"]


def test_of_one_gtid_the_newer_transaction_counts() -> None:
    """A server has given the GTID to another one, and the log has read that."""
    found = lasts_of(
        [last("0-1-5", 1), last("7-1-1"), last("0-1-5", 2)],
        parse_gtid_set("0-1-5,7-1-1", Flavor.MARIADB),
    )

    assert [(each.gtid, each.commit_us) for each in found] == [("7-1-1", 0), ("0-1-5", 2)]


@pytest.mark.parametrize("count", [LASTS_MAX, LASTS_MAX + 1])
def test_there_is_a_limit(count: int) -> None:
    """Beyond it the oldest are left out."""
    gtids = [f"{domain}-1-1" for domain in range(count)]

    assert kept(Flavor.MARIADB, ",".join(gtids), *gtids) == gtids[-LASTS_MAX:]


def test_transaction_without_a_place_is_the_same_up_to_its_time() -> None:
    """It was purged when the log began: what was committed since under its GTID is another one."""
    purged = LastTransaction("5-1-2", 10, "1", "", 0)

    assert [at_us for at_us in (9, 10, 11) if purged.is_same(at_us)] == [9, 10]
    assert [at_us for at_us in (9, 10, 11) if last("5-1-2", 10).is_same(at_us)] == [10]


def test_nothing_is_kept_of_nothing() -> None:
    """Before the first transaction."""
    assert kept(Flavor.MARIADB, "") == []
