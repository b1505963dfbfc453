"""The proof of the cache: every page that it returns is what the databases hold."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

from shardstream.demo.composed.pages import PageCache, page_of
from shardstream.demo.composed.servers import KEYSPACE, READER, connects
from shardstream.demo.sharded_writes import ShardDirectory
from shardstream.demo.shop import keyspace_id
from shardstream.settings.model import Settings

# An invalidator follows within milliseconds, or after a minute on a machine that does ten things.
AGREE_S_MAX: Final = 120.0
PAUSE_S: Final = 1.0


def check_pages(settings: Settings, say: Callable[[str], None]) -> bool:
    """Read every customer's page from the cache and from the database; True if all agree.

    The shop must be stopped. Waits for pages that are not invalidated yet.
    """
    directory = ShardDirectory(KEYSPACE, settings.kafka_client())
    wanted = _pages(settings, directory)
    with closing(PageCache(settings, directory)) as cache:
        ends_s = time.monotonic() + AGREE_S_MAX
        while True:
            different = [each for each, page in wanted.items() if cache.page(each) != page]
            if not different or time.monotonic() > ends_s:
                break
            time.sleep(PAUSE_S)
        hits = cache.counters().get("hits", 0)
    say(f"pages: {len(wanted)} compared, {len(different)} different; {hits} hits")
    return bool(wanted) and not different


def _pages(settings: Settings, directory: ShardDirectory) -> dict[int, dict[str, Any]]:
    """Return the pages of all customers, as the shards that serve them hold them."""
    found = {}
    shards = connects(settings, READER)
    for entry in directory.entries:
        with shards[entry.name]() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT customer_id, code FROM coupons ORDER BY code")
            coupons: dict[int, list[str]] = {}
            for customer, code in cursor.fetchall():
                coupons.setdefault(customer, []).append(code)
            cursor.execute("SELECT id, name, balance FROM customers")
            for customer, name, balance in cursor.fetchall():
                if entry.key_range.contains(keyspace_id(customer)):
                    found[customer] = page_of(name, balance, coupons.get(customer, []))
    return found
