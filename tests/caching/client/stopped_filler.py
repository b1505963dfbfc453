"""A process that gets `r20` at the beginning of shard -80's log, and waits between query and fill.

Its arguments are the URL of the store, the name of the cache, its number of buckets, and the token
of the read. It prints `read`, reads a line, and prints the value with what it counted.
"""

import json
import sys
from dataclasses import dataclass
from typing import Any

from shardstream import Cache, CacheOptions, EventToken, FreshRows, Read, open_store


@dataclass
class OldReader:
    """Reads the first version of a row."""

    token: EventToken

    def execute(self, *_: object, **__: object) -> FreshRows:
        return FreshRows([1], self.token, None, "replica")


def load(read: Read) -> Any:
    """Read, and wait."""
    version = read("r20", shard="-80")[0]
    print("read", flush=True)
    sys.stdin.readline()
    return {"r20": version}


def main(url: str, name: str, buckets: str, token: str) -> None:
    """Get the key once."""
    store = open_store(url, name, int(buckets), timeout_ms=60_000)
    readers = {"-80": OldReader(EventToken.from_string(token))}
    cache = Cache(store, readers, CacheOptions(lease_ms=0))
    value = cache.get_or_load("r20", load)
    print(json.dumps([value, dict(cache.counters())]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
