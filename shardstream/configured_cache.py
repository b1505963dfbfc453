"""A cache of the settings file, with everything that its invalidator and its watcher need."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from pymysql.cursors import Cursor

from caching.errors import CacheFindings, StoreError
from caching.invalidating.invalidator import InvalidatorOptions
from caching.invalidating.log import InvalidatorStart, LogStream, parse_invalidator_start
from caching.key_map import KeyMap
from caching.steps import run_steps
from caching.stores.opening import open_floors, open_store
from caching.stores.store import FLOORS_TIMEOUT_MS, FloorStore, Store
from credentials.secret import Secret
from databases.catalog import read_entry
from databases.connection import open_connection
from event_token.errors import Rebuild, Retry, UsageError
from shardstream.settings.model import CacheSection, Settings
from shardstream.settings.producer_settings import shard_producer_settings
from topics.stream.subscriber import checked_key_range


@dataclass(frozen=True, slots=True)
class ConfiguredCache:
    """One `[caches.NAME]`, and the logs that it is invalidated from."""

    name: str
    section: CacheSection
    password: Secret | None
    keys: KeyMap
    start: InvalidatorStart
    stream: LogStream

    @classmethod
    def of(
        cls, settings: Settings, keyspace: str, name: str, *, key_range: str, start: str
    ) -> Self:
        """Check the arguments against the settings; UsageError. Nothing is connected."""
        settings.keyspace(keyspace)
        section = settings.cache(name)
        if section.keyspace != keyspace:
            raise UsageError(f"cache {name} is of keyspace {section.keyspace}, not {keyspace}")
        parsed_start = parse_invalidator_start(start)
        parsed_range = checked_key_range(key_range)
        if key_range not in section.key_ranges:
            raise UsageError(
                f"--key-range {key_range}: the clients of cache {name} look for the positions of "
                f"{', '.join(section.key_ranges)}; name it in key_ranges of its settings"
            )
        keys = load_key_map(section.keys, settings.folder)
        config = settings.kafka_client()
        clock = settings.clock_uncertainty()
        stream = LogStream(keyspace, parsed_range, config, settings.schema_ids(), clock)
        return cls(name, section, settings.cache_password(name), keys, parsed_start, stream)

    def invalidator_options(self) -> InvalidatorOptions:
        """Return the choices of the settings and of the command."""
        section = self.section
        return InvalidatorOptions(
            start=self.start,
            batch_ms=section.batch_ms,
            publish_ms=section.publish_ms,
            renews_on_failover=section.on_failover == "renew",
        )

    def open_client(self) -> Store:
        """Open a client's side of the store that waits for it as an invalidator does."""
        return open_store(
            self.section.store,
            self.name,
            self.section.buckets,
            timeout_ms=FLOORS_TIMEOUT_MS,
            open_s=0,
            password=self.password,
            clock=self.stream.clock,
        )

    def open_floors(self) -> FloorStore:
        """Open the invalidator's side of the store."""
        section = self.section
        return open_floors(
            section.store,
            self.name,
            section.buckets,
            stale_ok_s=section.stale_ok_s,
            password=self.password,
            clock=self.stream.clock,
        )


def load_key_map(named: str, folder: Path) -> KeyMap:
    """Return the KeyMap `module:object`, from the settings' folder or an installed package.

    UsageError if it cannot be imported, is not a KeyMap, or maps no table.
    """
    module, _, name = named.partition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"keys = {named!r}: {error}. It names a module that can be imported from the folder of "
            f"the settings ({folder}) or is installed, and a KeyMap in it"
        ) from error
    if not isinstance(found, KeyMap):
        raise UsageError(f"keys = {named!r}: it is a {type(found).__name__}, not a KeyMap")
    if not found.tables:
        raise UsageError(f"keys = {named!r}: the KeyMap maps no table")
    return found


def check_invalidation(
    settings: Settings, cache: ConfiguredCache, warn: Callable[[str], None]
) -> None:
    """Raise a UsageError that lists what keeps the invalidator from working; warn of the rest.

    Servers that do not answer are passed over: the invalidator reads only their logs.
    """
    found = _store_findings(cache)
    for text in found.warnings:
        warn(text)
    keyspace = cache.section.keyspace
    for shard in settings.keyspace(keyspace).shards:
        for server in shard_producer_settings(settings, keyspace, shard).servers:
            where = f"{keyspace}/{shard} {server.name}"
            try:
                connection = open_connection(server)
            except (Retry, Rebuild, UsageError) as error:
                warn(f"{where}: its tables were not compared with the KeyMap: {error}")
                continue
            with connection, connection.cursor() as cursor:
                found.problems += [f"{where}: {each}" for each in _missing(connection, cache.keys)]
                for text in _images(cursor):
                    warn(f"{where}: {text}")
    found.refuse(f"cache {cache.name}")


def _store_findings(cache: ConfiguredCache) -> CacheFindings:
    store = cache.open_client()
    try:
        found, own = run_steps(store.check()), store.layout.text
        if found.layout not in {None, own}:
            found.warnings.append(
                f"the cache's last invalidator had the layout {found.layout}, this one has {own} "
                f"(number of buckets, version, memcached servers): clients with "
                f"another layout share nothing with it"
            )
        return found  # noqa: TRY300 - the finding is the result
    except StoreError as error:
        text = (
            f"store {cache.section.store}: {error}. Fix: start it, correct [caches.{cache.name}], "
            f"or let its account use the documented commands"
        )
        return CacheFindings(problems=[text])
    finally:
        run_steps(store.close())


def _missing(connection: Any, keys: KeyMap) -> Iterable[str]:
    for database, table in sorted(keys.tables):
        if read_entry(connection, database, table) is None:
            yield (
                f"the KeyMap maps {database}.{table}, which does not exist or is not visible. Fix: "
                f"correct the KeyMap, or GRANT SELECT ON {database}.{table}"
            )


def _images(cursor: Cursor) -> Iterable[str]:
    cursor.execute("SELECT @@global.binlog_row_image")
    row = cursor.fetchone()
    image = str(row[0]) if row else ""
    if image.upper() != "FULL":
        yield (
            f"binlog_row_image={image}: a mapper that uses other columns than the key's will stop "
            f"the invalidator. Fix: set binlog_row_image = FULL"
        )
