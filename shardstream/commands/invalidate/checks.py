"""Checks what an invalidator depends on, before it starts: all problems at once."""

from collections.abc import Callable, Iterable, Iterator

from pymysql.cursors import Cursor

from caching.errors import StoreError
from caching.key_map import KeyMap
from caching.stores.store import FloorStore
from databases.connection import open_connection
from event_token.errors import Rebuild, Retry, UsageError
from shardstream.settings.model import Settings
from shardstream.settings.producer_settings import shard_producer_settings


def check_invalidator(
    settings: Settings,
    cache: str,
    keys: KeyMap,
    open_store: Callable[[], FloorStore],
    warn: Callable[[str], None],
) -> None:
    """Raise a UsageError that lists what keeps the invalidator from working; warn of the rest.

    Servers that do not answer are passed over: the invalidator reads only their logs.
    """
    section = settings.cache(cache)
    problems = list(_store_problems(cache, section.store, open_store))
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
                    problems += [f"{where}: {each}" for each in _missing(cursor, keys)]
                    for text in _images(cursor):
                        warn(f"{where}: {text}")
            finally:
                connection.close()
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise UsageError(f"cache {cache}: {len(problems)} problem(s)\n{lines}")


def _store_problems(cache: str, store: str, open_store: Callable[[], FloorStore]) -> Iterator[str]:
    floors = open_store()
    try:
        floors.resume("-")
    except StoreError as error:
        yield f"store {store}: {error}. Fix: start it, or correct [caches.{cache}]"
    finally:
        floors.close()


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
