"""Checks what an invalidator depends on, before it starts: all problems at once."""

from collections.abc import Iterable
from functools import partial

from pymysql.cursors import Cursor

from caching.errors import StoreError
from caching.findings import Findings
from caching.key_map import KeyMap
from caching.stores.store import Store
from databases.connection import open_connection
from event_token.errors import Rebuild, Retry, UsageError
from shardstream.commands.invalidate.chosen import Chosen, InvalidateOptions
from shardstream.commands.status_lines import warn as print_warning
from shardstream.settings.model import Settings
from shardstream.settings.producer_settings import shard_producer_settings


def check(settings: Settings, options: InvalidateOptions, chosen: Chosen) -> None:
    """Raise a UsageError that lists what keeps the invalidator from working; warn of the rest.

    Servers that do not answer are passed over: the invalidator reads only their logs.
    """
    section, keys = chosen.section, chosen.keys
    warn = partial(print_warning, options.cache, as_json=options.as_json)
    found = _store_findings(options.cache, section.store, chosen.open_client(options.cache))
    for text in found.warnings:
        warn(text)
    for shard in settings.keyspace(section.keyspace).shards:
        for server in shard_producer_settings(settings, section.keyspace, shard).servers:
            where = f"{section.keyspace}/{shard} {server.name}"
            try:
                connection = open_connection(server)
            except (Retry, Rebuild, UsageError) as error:
                warn(f"{where}: its tables were not compared with the KeyMap: {error}")
                continue
            try:
                with connection.cursor() as cursor:
                    found.problems += [f"{where}: {each}" for each in _missing(cursor, keys)]
                    for text in _images(cursor):
                        warn(f"{where}: {text}")
            finally:
                connection.close()
    found.refuse(f"cache {options.cache}")


def _store_findings(cache: str, url: str, store: Store) -> Findings:
    try:
        found, own = store.check(), store.layout.text
        if found.layout not in {None, own}:
            found.warnings.append(
                f"the cache's last invalidator had the layout {found.layout}, this one has {own} "
                f"(number of buckets, version, memcached servers): clients with another one than "
                f"theirs share nothing"
            )
        return found  # noqa: TRY300 - the finding is the result
    except StoreError as error:
        fix = f"start it, correct [caches.{cache}], or let its account use the documented commands"
        return Findings(problems=[f"store {url}: {error}. Fix: {fix}"])
    finally:
        store.close()


def _missing(cursor: Cursor, keys: KeyMap) -> Iterable[str]:
    for database, table in sorted(keys.tables):
        cursor.execute(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            (database, table),
        )
        if cursor.fetchone() is None:
            yield (
                f"the KeyMap maps {database}.{table}, which is not there or not visible. Fix: "
                f"correct the KeyMap, or GRANT SELECT ON {database}.{table}"
            )


def _images(cursor: Cursor) -> Iterable[str]:
    cursor.execute("SELECT @@global.binlog_row_image")
    row = cursor.fetchone()
    image = str(row[0]) if row else ""
    if image.upper() != "FULL":
        yield (
            f"binlog_row_image={image}: a mapper that uses other columns than the key's will stop "
            f"the invalidator. Fix: SET GLOBAL binlog_row_image = FULL"
        )
