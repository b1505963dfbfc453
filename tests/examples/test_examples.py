"""The programs of examples/ run as their heads say, on two real shards."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from playwright._impl._driver import compute_driver_executable

from shardstream import KeyRange, vindex_named
from shardstream.local.cache_server import RedisServer
from shardstream.local.fetching import java_command
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.local_server import free_ports
from shardstream.local.processes import with_parent_guard
from tests.database_servers import DatabaseFixture
from tests.repository import ROOT
from tests.shardstream.command_line import Background, background, streaming, write_settings
from tests.waiting import wait_for

pytestmark = pytest.mark.full

EXAMPLES = ROOT / "examples"
TABLE = "shop.products"
IDS = range(1, 25)
# Each round changes every product once.
ROUNDS = 12
TEAS = ("green tea", "black tea", "coffee")

Row = tuple[str, str]  # name and price


class Program:
    """An example that runs until it is killed."""

    def __init__(self, folder: Path, *command: str) -> None:
        self._folder = folder
        self._command = command
        self._runs = 0
        self.start()

    def start(self) -> None:
        """Start it, with the settings file in its folder and the packages of this checkout."""
        self._runs += 1
        self._log = self._folder / f"{Path(self._command[1]).name}.{self._runs}.log"
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                with_parent_guard(self._command),
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        """Send SIGKILL; it must not have ended before."""
        assert self._process.poll() is None, self.output
        self._process.kill()
        self._process.wait()

    def wait_end(self) -> int:
        wait_for("its end", lambda: self._process.poll() is not None, said=lambda: self.output)
        return int(self._process.returncode)


@dataclass
class Shop:
    """Two shards with producers and a table each, and what was written to them."""

    folder: Path
    keyspace: str
    config: Path
    databases: Mapping[str, DatabaseFixture]
    opened: ExitStack
    ports: Sequence[int]
    written: list[tuple[str, int, str]] = field(default_factory=list)  # op, id, price
    present: dict[int, Row] = field(default_factory=dict)
    starts: int = 0

    @property
    def stream(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}/v1/streams/{self.keyspace}"

    def command(self, *arguments: str) -> Background:
        """Run a command until the end of the test, or until it is killed."""
        self.starts += 1
        given = (*arguments, "--json", "--config", str(self.config))
        name = f"{arguments[0]}_{self.starts}"
        return self.opened.enter_context(background(self.folder, name, *given))

    def serve(self) -> Background:
        started = self.command("serve", "--streams", "--http", f"127.0.0.1:{self.ports[0]}")
        started.wait_for("its address", lambda found: bool(found.lines))
        return started

    def invalidate(self) -> Background:
        return self.command("invalidate", self.keyspace, "--cache", "pages")

    def write(self, rounds: Sequence[int]) -> None:
        """Change each product once per round: two thirds exist, some of which go or come back."""
        for number in rounds:
            for product in IDS:
                self._write(product, f"{TEAS[(product + number) % 3]} no {product}", f"{number}.50")

    def _write(self, product: int, name: str, price: str) -> None:
        if product not in self.present:
            change = f"INSERT INTO {TABLE} VALUES ({product}, '{name}', {price})"
        elif name.startswith("coffee"):
            change = f"DELETE FROM {TABLE} WHERE id = {product}"
        else:
            change = f"UPDATE {TABLE} SET name = '{name}', price = {price} WHERE id = {product}"
        op = change.partition(" ")[0]
        self.run(self.shard_of(product), change)
        if op == "DELETE":
            del self.present[product]
        else:
            self.present[product] = (name, price)
        self.written.append((op, product, "" if op == "DELETE" else price))

    def shard_of(self, product: int) -> str:
        found = vindex_named("hash").keyspace_id(product)
        return next(name for name in self.databases if KeyRange.parse(name).contains(found))

    def run(self, shard: str, statement: str) -> None:
        with self.databases[shard].connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)

    def stored(self) -> dict[int, Row]:
        """The rows that the tables of both shards have."""
        found: dict[int, Row] = {}
        for database in self.databases.values():
            with database.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"SELECT id, name, price FROM {TABLE}")
                found |= {row[0]: (row[1], str(row[2])) for row in cursor.fetchall()}
        return found

    def page(self, product: int) -> tuple[bool, Row | None]:
        """Whether a product's page came from the cache, and the row that it shows."""
        connection = HTTPConnection("127.0.0.1", self.ports[1])
        with closing(connection):
            connection.request("GET", f"/{product}")
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status in {200, 404}, text
            page = json.loads(text)
        row = None if answer.status == 404 else (page["name"], page["price"])
        return answer.headers["X-Cache"] == "hit", row

    def pages(self) -> dict[int, tuple[bool, Row | None]]:
        return {product: self.page(product) for product in IDS}

    def cached(self, rows: Mapping[int, Row]) -> dict[int, tuple[bool, Row | None]]:
        """The pages of these rows, all of them hits."""
        return {product: (True, rows.get(product)) for product in IDS}

    def answers(self) -> bool:
        try:
            self.page(1)
        except ConnectionError:
            return False
        return True


@pytest.fixture
def shop(
    tmp_path: Path,
    kafka: KafkaCluster,
    keyspace: str,
    mysql_a: DatabaseFixture,
    mysql_b: DatabaseFixture,
) -> Iterator[Shop]:
    """The shop, whose table is in the logs from its creation on, and its cache in Redis."""
    databases = {"-80": mysql_a, "80-": mysql_b}
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, databases)
    redis = RedisServer(tmp_path / "redis", die_with_parent=True)
    with ExitStack() as opened:
        opened.callback(redis.kill)
        redis.start()
        section = [f'keyspace = "{keyspace}"', f'store = "redis://{redis.address}"']
        with config.open("a") as file:
            file.write("\n".join(["[caches.pages]", *section, 'keys = "pages:KEYS"', ""]))
        made = Shop(tmp_path, keyspace, config, databases, opened, free_ports(2))
        producers = [made.command("produce", keyspace, shard) for shard in databases]
        for producer in producers:
            producer.wait_for("streaming", streaming)
        for shard in databases:
            opened.callback(made.run, shard, "DROP DATABASE shop")
            made.run(shard, "CREATE DATABASE shop")
            columns = "id INT PRIMARY KEY, name VARCHAR(80), price DECIMAL(10,2)"
            made.run(shard, f"CREATE TABLE {TABLE} ({columns})")
        yield made


@dataclass(frozen=True)
class Indexed:
    """What the search index holds."""

    changes: int
    rows: dict[int, str]
    teas: set[int]

    @classmethod
    def read(cls, path: Path) -> "Indexed":
        if not path.exists():
            return cls(0, {}, set())
        try:
            with closing(sqlite3.connect(path)) as index:
                [changes] = index.execute("SELECT changes FROM place").fetchone() or (0,)
                found = index.execute("SELECT rowid FROM found WHERE name MATCH 'green AND tea'")
                teas = {row[0] for row in found}
                return cls(changes, dict(index.execute("SELECT rowid, name FROM found")), teas)
        except sqlite3.OperationalError:  # it is being created
            return cls(0, {}, set())


def kept_in_node(path: Path) -> dict[str, Any]:
    """What the Node client has stored."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"changes": 0}
    return found


def logged_in_java(path: Path) -> list[dict[str, Any]]:
    """The changes of rows in the whole lines that the Java client has written."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    changes = [json.loads(line.partition("\t")[2]) for line in lines]
    return [change for change in changes if change["type"] == "ROW"]


def written_of(change: Mapping[str, Any]) -> tuple[str, int, str]:
    """The op, id and price of a logged change."""
    row = change["after"] or change["before"]
    return change["op"], row["id"], change["after"]["price"] if change["after"] else ""


def test_examples_lose_and_repeat_nothing(shop: Shop) -> None:
    """Killed with SIGKILL while rows change, and started again, all agree with the tables.

    The server of streams and the invalidator are killed, too. A TRUNCATE, which logs no rows, stops
    those that keep rows.
    """
    index, kept, log = (shop.folder / name for name in ("index.db", "rows.json", "changes.log"))
    node, _ = compute_driver_executable()
    python, cache = sys.executable, EXAMPLES / "cache"
    (shop.folder / "pages.py").write_text((cache / "pages.py").read_text())
    server, invalidator = shop.serve(), shop.invalidate()
    search = Program(
        shop.folder,
        *(python, str(EXAMPLES / "search/index.py"), shop.keyspace, TABLE, str(index)),
    )
    in_node = Program(
        shop.folder,
        *(node, str(EXAMPLES / "node/client.mjs"), shop.stream, TABLE, str(kept)),
    )
    stream = f"{shop.stream}?start=earliest&table={TABLE}"
    in_java = Program(
        shop.folder, java_command(), str(EXAMPLES / "java/Client.java"), stream, str(log)
    )
    pages = Program(
        shop.folder, python, str(cache / "pages.py"), str(shop.config), str(shop.ports[1])
    )

    def numbers() -> tuple[int, int, int]:
        return (
            Indexed.read(index).changes,
            kept_in_node(kept)["changes"],
            len(logged_in_java(log)),
        )

    def have(count: int) -> None:
        wait_for(f"{count} changes", lambda: min(numbers()) >= count, said=numbers)

    def have_pages() -> None:
        expected = shop.cached(shop.present)
        wait_for("pages from the cache", lambda: shop.pages() == expected, said=shop.pages)

    shop.write(range(3))
    have(1)
    wait_for("an answer", shop.answers, said=lambda: pages.output)
    have_pages()
    for program in (search, in_node, in_java, pages):
        program.kill()
    invalidator.process.kill()
    shop.write(range(3, 6))
    for program in (search, in_node, in_java, pages):
        program.start()
    shop.invalidate()
    have(len(IDS) * 3 + 1)
    server.process.kill()
    shop.write(range(6, 9))
    search.kill()
    shop.serve()
    search.start()
    shop.write(range(9, ROUNDS))
    have(len(shop.written))
    have_pages()

    stored = shop.stored()
    assert stored == shop.present
    assert len(shop.written) == len(IDS) * ROUNDS
    found = Indexed.read(index)
    assert found.changes == len(shop.written)
    assert found.rows == {product: name for product, (name, _) in stored.items()}
    assert found.teas == {id_ for id_, (name, _) in stored.items() if name.startswith("green")}
    rows = kept_in_node(kept)
    assert rows["changes"] == len(shop.written)
    in_file = {int(key): (row["name"], row["price"]) for key, row in rows["rows"].items()}
    assert in_file == stored
    assert [written_of(change) for change in logged_in_java(log)] == shop.written

    shop.run("-80", f"TRUNCATE TABLE {TABLE}")
    left = {product: row for product, row in stored.items() if shop.shard_of(product) != "-80"}
    for program in (search, in_node):
        assert program.wait_end() == 1
        assert re.search(rf"-80: TRUNCATE TABLE {TABLE}", program.output), program.output
    expected = shop.cached(left)
    wait_for("pages without the rows", lambda: shop.pages() == expected, said=shop.pages)
