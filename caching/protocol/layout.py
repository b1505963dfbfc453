"""Where floors, entries and positions lie: the names of a cache's keys in its store."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import xxhash

from caching.errors import LayoutError

LAYOUT_VERSION = 1
GROUPS = 64
BUCKETS_DEFAULT = 16_384
# 150 bytes for each bucket and shard: beyond this the floors alone take a gigabyte.
BUCKETS_MAX = 4_194_304

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class CacheLayout:
    """The layout of one cache; who disagrees on any part of it uses other keys.

    `cache` is its name, `buckets` the number of buckets (a multiple of 64), `nodes` the sorted
    list of memcached nodes (none for Redis). LayoutError on anything else.
    """

    cache: str
    buckets: int = BUCKETS_DEFAULT
    nodes: Sequence[str] = ()
    prefix: str = field(init=False)
    _group_prefixes: Sequence[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the parts and compute the prefix of all keys."""
        if _NAME.fullmatch(self.cache) is None:
            raise LayoutError(
                f"'{self.cache}' is not a cache name: 1 to 64 letters, digits, '_', '.' or '-'"
            )
        if not GROUPS <= self.buckets <= BUCKETS_MAX or self.buckets % GROUPS:
            raise LayoutError(
                f"cache {self.cache}: {self.buckets} buckets; it takes a multiple of {GROUPS} up "
                f"to {BUCKETS_MAX}"
            )
        layout_id = xxhash.xxh64_hexdigest(self.text.encode())[:8]
        prefix = f"shardstream:{self.cache}:{layout_id}"
        object.__setattr__(self, "prefix", prefix)
        groups = tuple(f"{prefix}:{{{group}}}" for group in range(GROUPS))
        object.__setattr__(self, "_group_prefixes", groups)

    @property
    def text(self) -> str:
        """All parts of the layout: number of buckets, version, and memcached nodes."""
        return f"{self.buckets}/{LAYOUT_VERSION}/{','.join(sorted(self.nodes))}"

    def bucket(self, key: str) -> int:
        """Return the bucket of a cache key."""
        return xxhash.xxh64_intdigest(key.encode()) % self.buckets

    def group(self, bucket: int) -> int:
        """Return the group of a bucket; a group lies in one slot of a Redis Cluster."""
        return bucket % GROUPS

    def floor_key(self, bucket: int) -> str:
        """Return the name of a bucket's floor."""
        return f"{self._group_prefixes[bucket % GROUPS]}:f:{bucket}"

    def slot_key(self, key: str) -> str:
        """Return the name of a cache key's slot."""
        return f"{self._group_prefixes[self.bucket(key) % GROUPS]}:v:{key}"

    def place(self, key: str) -> tuple[int, str, str]:
        """Return the group of a cache key, and the names of its floor and slot."""
        bucket = self.bucket(key)
        group = bucket % GROUPS
        prefix = self._group_prefixes[group]
        return group, f"{prefix}:f:{bucket}", f"{prefix}:v:{key}"

    def stale_key(self, key: str) -> str:
        """Return the name under which the last removed value of a cache key is kept for a while."""
        return f"{self._group_prefixes[self.bucket(key) % GROUPS]}:s:{key}"

    def position_key(self, group: int, key_range: str) -> str:
        """Return the name under which the invalidator of a key range publishes its position."""
        return f"{self._group_prefixes[group]}:pos:{key_range}"

    def wanted_key(self, group: int) -> str:
        """Return the name of the list of a group's buckets whose floors clients found missing."""
        return f"{self._group_prefixes[group]}:wanted"

    def lease_key(self, key_range: str) -> str:
        """Return the name of the lease of the invalidator of a key range; it lies in group 0."""
        return f"{self.prefix}:{{0}}:lease:{key_range}"

    def layout_key(self) -> str:
        """Return the name under which the invalidator's layout lies; the same in every layout."""
        return f"shardstream:{self.cache}:{{0}}:layout"
