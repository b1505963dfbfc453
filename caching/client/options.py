"""What an operator may choose for one cache: defaults and bounds, once.

`shardstream.settings` reads these from a file and checks the bounds, which stand in the types.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from caching.protocol.layout import BUCKETS_DEFAULT, BUCKETS_MAX, GROUPS

# A misspelt setting that is silently ignored would leave a cache unguarded.
_STRICT = ConfigDict(extra="forbid")

OnBehind = Literal["serve", "bypass"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """The choices for one cache, for its clients and its invalidator.

    `buckets`: another number is another, empty cache. `ttl_s`: how long a value lives at most;
    each lives up to 10 % shorter. `key_ranges`: those of its invalidators. `max_behind_s`,
    `on_behind`: whether hits are still returned once the position of one of them has not moved for
    this long. `on_failover`: what the invalidator does with
    a shard's floors when another server begins to write its log. `lease_ms`: how long others wait
    for the one that loads a missing value; 0: nobody waits. `stale_ok_s`: how long a removed value
    is kept for callers that rather take it, marked, than wait; 0: not at all. `batch_ms`,
    `publish_ms`: how long the invalidator gathers changes, and how often it stores its position.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    buckets: Annotated[int, Field(ge=GROUPS, le=BUCKETS_MAX, multiple_of=GROUPS)] = BUCKETS_DEFAULT
    # 30 days: memcached takes anything longer for a date.
    ttl_s: Annotated[int, Field(ge=1, le=2_592_000)] = 3_600
    # Well above the invalidator's publish_ms, or every cache would seem to be behind.
    key_ranges: Annotated[tuple[str, ...], Field(min_length=1)] = ("-",)
    max_behind_s: Annotated[int, Field(ge=2, le=86_400)] = 10
    on_behind: OnBehind = "serve"
    on_failover: Literal["renew", "keep"] = "renew"
    lease_ms: Annotated[int, Field(ge=0, le=10_000)] = 200
    # A day: what is older than that is no answer.
    stale_ok_s: Annotated[int, Field(ge=0, le=86_400)] = 0
    batch_ms: Annotated[int, Field(ge=0, le=1_000)] = 5
    publish_ms: Annotated[int, Field(ge=50, le=1_000)] = 500
