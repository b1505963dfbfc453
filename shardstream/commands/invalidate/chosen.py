"""What `shardstream invalidate` was told: which cache, from which logs, and how to print."""

from dataclasses import dataclass

from caching.invalidating.invalidator import InvalidatorOptions
from caching.invalidating.start import InvalidatorStart, Stream, parse_invalidator_start
from caching.key_map import KeyMap
from caching.stores.circuit import FLOORS_TIMEOUT_MS
from caching.stores.opening import open_store
from caching.stores.store import Store
from event_token import UsageError
from shardstream.commands.invalidate.key_maps import load_key_map
from shardstream.commands.status_lines import StatusLines
from shardstream.settings.cache_section import CacheSection
from shardstream.settings.model import Settings
from topics.schemas.registry import open_schema_ids
from topics.stream.arguments import checked_key_range


@dataclass(frozen=True, slots=True)
class InvalidateOptions:
    """Which cache to keep or to watch, from where, and what to print."""

    keyspace: str
    cache: str
    key_range: str = "-"
    start: str = "stored"
    as_json: bool = False
    every_s: float | None = None

    @property
    def where(self) -> str:
        """What lines are about."""
        return f"{self.cache}/{self.key_range}"

    def lines(self) -> StatusLines:
        """Return what prints lines."""
        return StatusLines(as_json=self.as_json, every_s=self.every_s)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A cache of the settings, with everything that its invalidator and its watcher need."""

    section: CacheSection
    url: str
    keys: KeyMap
    start: InvalidatorStart
    stream: Stream

    def invalidator_options(self) -> InvalidatorOptions:
        """Return the choices of the settings and of the command."""
        section = self.section
        return InvalidatorOptions(
            start=self.start,
            batch_ms=section.batch_ms,
            publish_ms=section.publish_ms,
            renews_on_failover=section.on_failover == "renew",
        )

    def open_client(self, cache: str) -> Store:
        """Return a client's side of the store that waits for it as an invalidator does."""
        return open_store(
            self.url, cache, self.section.buckets, timeout_ms=FLOORS_TIMEOUT_MS, open_s=0
        )

    @classmethod
    def of(cls, settings: Settings, options: InvalidateOptions) -> "Chosen":
        """Check the options against the settings; UsageError. Nothing is connected."""
        settings.keyspace(options.keyspace)
        section = settings.cache(options.cache)
        if section.keyspace != options.keyspace:
            raise UsageError(
                f"cache {options.cache} is of keyspace {section.keyspace}, not {options.keyspace}"
            )
        start = parse_invalidator_start(options.start)
        key_range = checked_key_range(options.key_range)
        if options.key_range not in section.key_ranges:
            raise UsageError(
                f"--key-range {options.key_range}: the clients of cache {options.cache} look for "
                f"the positions of {', '.join(section.key_ranges)}; name it in key_ranges of its "
                f"settings"
            )
        keys = load_key_map(section.keys, settings.folder)
        config = settings.kafka_client()
        schema_ids = open_schema_ids(config, settings.kafka.schema_registry_url)
        clock = settings.clock_uncertainty()
        stream = Stream(options.keyspace, key_range, config, schema_ids, clock)
        return cls(section, settings.cache_url(options.cache), keys, start, stream)
