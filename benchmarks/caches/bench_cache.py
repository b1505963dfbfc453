"""A cache on Redis whose floors are made, as after the first minute of its invalidator."""

import secrets
from typing import Final

from redis import Redis

from caching.protocol import CacheLayout, Floor
from caching.protocol.layout import BUCKETS_DEFAULT
from caching.protocol.stored_forms import GENERATION_BYTES
from caching.stores.on_redis.store import RedisFloors
from caching.stores.opening import open_store
from caching.stores.store import Store, StoreOptions
from event_token import EventToken
from event_token.gtid_set import Flavor, parse_gtid_set
from shardstream.local.cache_server import RedisServer

ALL: Final = "-"
# Long enough that a busy machine does not open the circuit.
TIMEOUT_MS: Final = 20_000
# Of a benchmark that needs GTIDs but no server.
SERVER_UUID: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
BASE_US: Final = 1_767_225_600_000_000


def redis_url(server: RedisServer) -> str:
    """Return the URL of a server's store."""
    return f"redis://{server.address}"


def redis_client(server: RedisServer) -> "Redis":
    """Return redis-py's own client."""
    return Redis(host=server.host, port=server.port)


def token(number: int, shard: str = ALL) -> EventToken:
    """Return the token of a shard's transaction with this number, one per millisecond."""
    executed = parse_gtid_set(f"{SERVER_UUID}:1-{number}", Flavor.MYSQL)
    return EventToken(BASE_US + number * 1_000, shard, executed)


def open_cache(url: str, name: str, *tokens: EventToken, buckets: int = BUCKETS_DEFAULT) -> Store:
    """Open a client's store in which every bucket has a floor at these tokens."""
    floors = open_invalidator(url, name, buckets)
    made = {each.shard: each for each in tokens}
    claim = floors.claim(range(buckets))
    floors.make_floors(claim, lambda: Floor(secrets.token_bytes(GENERATION_BYTES), made))
    floors.close()
    return open_store(url, name, buckets, timeout_ms=TIMEOUT_MS)


def open_invalidator(url: str, name: str, buckets: int = BUCKETS_DEFAULT) -> RedisFloors:
    """Open the invalidator's side, connected."""
    floors = RedisFloors(CacheLayout(name, buckets), url, StoreOptions(timeout_ms=TIMEOUT_MS))
    floors.resume(ALL)
    return floors
