"""Product pages behind Redis, in a cache that never brings an old row back.

A cache that is filled by readers and cleared by a change stream keeps an old row for good when a
slow read, or one of a lagging replica, is stored after the change was applied. Here a page enters
only if its read is proven to hold every change that was applied to it; all others are shown, and
not kept. Who writes rows does nothing for the cache.

The settings file names the cache, see README.md of this folder:

    shardstream invalidate commerce --cache pages
    python examples/cache/pages.py shardstream.toml 8080
    curl -i localhost:8080/7
"""

import json
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pymysql

from shardstream import Cache, FreshReader, KeyMap, Read, RowImage

CACHE = "pages"
# The invalidator calls the functions of this map with each changed row, before and after.
KEYS = KeyMap()


@KEYS.of("shop.products")
def keys_of(row: RowImage) -> Iterator[str]:
    """Yield the keys of the pages that show a row."""
    yield f"product:{row['id']}"


def connect(folder: Path, server: dict[str, Any]) -> Any:
    """Connect to a server of the settings file."""
    password = (folder / server["password_file"]).read_text().strip()
    return pymysql.connect(
        host=server["host"], port=server["port"], user=server["user"], password=password
    )


def open_cache(path: Path) -> Cache:
    """Open the cache; each shard has a reader, which lists replicas first if there are any."""
    settings = tomllib.loads(path.read_text())
    keyspace = settings["caches"][CACHE]["keyspace"]
    readers = {}
    for shard, each in settings["keyspaces"][keyspace]["shards"].items():
        servers = [partial(connect, path.parent, server) for server in each["servers"]]
        readers[shard] = FreshReader(keyspace, shard, servers, flavor=each["flavor"])
    return Cache.from_settings(path, CACHE, readers)


class Pages(BaseHTTPRequestHandler):
    """Answers `GET /ID` with a product as JSON, and says whether it came from the cache."""

    cache: Cache

    def do_GET(self) -> None:
        """Answer with a page; one that does not exist is cached, too."""
        product_id, loads = int(self.path[1:]), []

        def load(read: Read) -> dict[str, Any] | None:
            loads.append(product_id)
            query = "SELECT name, price FROM shop.products WHERE id = %s"
            rows = read(query, product_id, on=product_id)  # on the shard that has this id
            return {"name": rows[0][0], "price": str(rows[0][1])} if rows else None

        page = self.cache.get_or_load(f"product:{product_id}", load)
        self.send_response(404 if page is None else 200)
        self.send_header("X-Cache", "miss" if loads else "hit")
        self.end_headers()
        self.wfile.write(json.dumps(page).encode())


if __name__ == "__main__":
    Pages.cache = open_cache(Path(sys.argv[1]))
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Pages).serve_forever()
