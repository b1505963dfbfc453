"""What the cached demo calls a success."""

import pytest

from shardstream.demo.cached.catalogue import all_keys
from shardstream.demo.cached.proof import CacheComparison, CachedVerdict, PageDifference

ALL = len(all_keys())
WRONG = [PageDifference("product:1", {"price": "1"}, {"price": "2"})]


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        (CacheComparison(ALL, WRONG), []),
        (CacheComparison(ALL - 1, []), []),
        (CacheComparison(0, []), []),
        (CacheComparison(ALL, []), ["(b) the buyer did not see their own write"]),
    ],
)
def test_a_wrong_or_missing_entry_is_no_success(
    found: CacheComparison, problems: list[str]
) -> None:
    """An empty cache has no wrong entries and proves nothing; nor does a step that went wrong."""
    assert not CachedVerdict({"shardstream": found}, problems).holds


def test_what_ordinary_caches_hold_is_only_shown() -> None:
    """The demo succeeds by its own cache, and its last line has all of them."""
    verdict = CachedVerdict(
        {"shardstream": CacheComparison(ALL, []), "cache-aside": CacheComparison(9, WRONG)}, []
    )

    assert verdict.holds
    assert verdict.last_line() == f"demo: {ALL} entries, 0 wrong; cache-aside: 1 wrong"
