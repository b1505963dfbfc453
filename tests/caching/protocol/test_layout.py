"""The names of a cache's keys: who disagrees on the layout uses other keys."""

import pytest

from caching.errors import LayoutError
from caching.protocol import CacheLayout
from caching.protocol.layout import BUCKETS_DEFAULT


def test_a_group_lies_in_one_slot_of_a_cluster() -> None:
    """Floor, value and position of one group have the same part in braces."""
    layout = CacheLayout("shop")
    bucket = layout.bucket("user:1")
    braces = f":{{{layout.group(bucket)}}}:"

    assert layout.floor_key(bucket).startswith(layout.prefix + braces)
    assert layout.slot_key("user:1") == f"{layout.prefix}{braces}v:user:1"
    assert braces in layout.position_key(layout.group(bucket), "-80")


def test_another_layout_has_other_names() -> None:
    """Number of buckets and list of nodes are part of the names; the order of nodes is not."""
    prefixes = [
        CacheLayout("shop").prefix,
        CacheLayout("shop", 64).prefix,
        CacheLayout("shop", nodes=("a", "b")).prefix,
        CacheLayout("shop", nodes=("a",)).prefix,
    ]

    assert len(set(prefixes)) == len(prefixes)
    assert (
        CacheLayout("shop", nodes=("b", "a")).prefix == CacheLayout("shop", nodes=("a", "b")).prefix
    )


def test_buckets_spread() -> None:
    """Every key has a bucket in range, and keys do not share few of them."""
    layout = CacheLayout("shop")
    buckets = {layout.bucket(f"user:{number}") for number in range(1_000)}

    assert len(buckets) > 900
    assert all(0 <= bucket < BUCKETS_DEFAULT for bucket in buckets)


@pytest.mark.parametrize(("cache", "buckets"), [("", 64), ("a b", 64), ("a", 63), ("a", 100)])
def test_a_layout_that_cannot_be_is_refused(cache: str, buckets: int) -> None:
    """Names that would not fit into keys, and buckets that do not fill their groups."""
    with pytest.raises(LayoutError):
        CacheLayout(cache, buckets)
