"""A keyspace in PostgreSQL: `shardstream database` beside Debezium's JDBC sink on table topics.

Both start in an empty database. Ours reads the shard logs, with Spark; the sink reads the topic
that `shardstream table-topics` has made of the same logs, up to a part of it.
"""

import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import psycopg

from benchmarks.debezium import PEER
from benchmarks.figures import (
    PER_MESSAGES,
    DrainRates,
    Figure,
    Turn,
    drain_rates,
    figure,
)
from benchmarks.sinks.database_apply import new_database
from benchmarks.sinks.sink_job import job_command
from benchmarks.stack import Stack
from benchmarks.watch import sample_until, spark_cpu_s, tree_cpu_s
from event_token.errors import Halt
from shardstream.local.postgres_server import PostgresServer
from shardstream.local.processes import ServerProcess, with_parent_guard
from tests.postgres_servers import PostgresFixture
from tests.sinks.table_topics.jdbc_sink import jdbc_sink
from tests.spark_consumers.shop import Change, Shop
from topics.records.vevent import Row

NAME: Final = "database.beside_debezium_jdbc"
KEYSPACE: Final = "beside_jdbc"
HOMES: Final = {"-80": b"\x10", "80-": b"\x90"}
SHARDS: Final = (*HOMES,)
TRANSACTION_ROWS: Final = 500
# Time between commits. Table topics remember the rows that were inserted within ten minutes.
TRANSACTION_US: Final = 60_000_000
# Batches of Spark are large, and each of its turns begins with a cold JVM.
CHANGES: Final = 900_000
QUICK_CHANGES: Final = 60_000
BATCHES: Final = 6
# The sink's part: INSERTs.
THEIR_CHANGES: Final = 40_000
THEIR_QUICK_CHANGES: Final = 15_000
TOPIC_S_MAX: Final = 900.0
OUTPUT_TAIL: Final = 3000
# The sink's rows are counted, which takes some milliseconds.
SAMPLE_S: Final = 0.2


def run(stack: Stack, _names: tuple[str, ...], *, runs: int, quick: bool) -> list[Figure]:
    """Write the logs and the topic, then let both write databases, one after the other."""
    changes, their_changes = (
        (QUICK_CHANGES, THEIR_QUICK_CHANGES) if quick else (CHANGES, THEIR_CHANGES)
    )
    stack.report(f"{NAME}: writing {changes:,} changes to two shards, and their topic")
    kafka, server = stack.kafka(), stack.postgres()
    shop = Shop(kafka.bootstrap_servers, KEYSPACE)
    try:
        write(shop, changes)
    finally:
        shop.close()
    source = shop.options(maxRowsPerBatch=str(changes // BATCHES))
    del source["keyspace"]
    _write_topic(stack.folder / "beside-jdbc-topic", {**source, "maxRowsPerBatch": "20000"})
    turns = []
    for number in range(runs):
        stack.report(f"{NAME}: run {number + 1}")
        parts: dict[str, float] = {}
        folder = stack.folder / f"beside-jdbc-ours-{number}"
        ours = _ours(folder, server, source, changes, parts)
        listed = ", ".join(f"{part} {cpu_s:.2f}" for part, cpu_s in parts.items())
        stack.report(f"{NAME}: CPU s/100k from the first batch on: {listed}")
        folder = stack.folder / f"beside-jdbc-{number}"
        theirs = _theirs(folder, server, kafka.bootstrap_servers, their_changes)
        turns.append((ours, theirs))
    return [
        figure(
            NAME,
            "changes/s, steady",
            [Turn(ours.steady_per_s, theirs.steady_per_s) for ours, theirs in turns],
            peer=PEER,
        ),
        figure(
            f"{NAME}_cpu",
            f"CPU s/{PER_MESSAGES // 1000}k, with the server's",
            [Turn(ours.cpu_s_per_100k, theirs.cpu_s_per_100k) for ours, theirs in turns],
            peer=PEER,
        ),
    ]


def write(shop: Shop, changes: int) -> None:
    """Write INSERTs of a third, and two UPDATEs of each of these rows."""
    rows: list[Row] = [
        {"id": number, "note": f"order {number} of a customer", "price": None}
        for number in range(changes // 3)
    ]
    for turn in range(3):
        for begin in range(0, len(rows), TRANSACTION_ROWS):
            shard = SHARDS[begin // TRANSACTION_ROWS % len(SHARDS)]
            home = HOMES[shard]
            changed = []
            for i in range(begin, min(begin + TRANSACTION_ROWS, len(rows))):
                before = None if turn == 0 else rows[i]
                rows[i] = {**rows[i], "note": f"order {i} of a customer, {turn}"}
                ids = (None if before is None else home, home)
                changed.append(Change(shop.now_us, before, rows[i], ids=ids))
            shop.writers[shard].write(changed)
            shop.now_us += TRANSACTION_US
    shop.now_us += 1_000_000
    for writer in shop.writers.values():
        writer.promise(shop.now_us)


def _write_topic(folder: Path, source: Mapping[str, str]) -> None:
    folder.mkdir()
    log_path = folder / "spark.log"
    with log_path.open("wb") as log:
        done = subprocess.run(
            with_parent_guard(
                job_command(folder, keyspace=KEYSPACE, prefix=KEYSPACE, schemas=True, source=source)
            ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=TOPIC_S_MAX,
            check=False,
        )
    if done.returncode != 0:
        said = log_path.read_text(errors="replace")[-OUTPUT_TAIL:]
        raise Halt(f"table topics ended with status {done.returncode}:\n{said}")


def _ours(
    folder: Path,
    server: PostgresServer,
    source: Mapping[str, str],
    changes: int,
    parts: dict[str, float],
) -> DrainRates:
    """Let `shardstream database` apply everything.

    `parts` gets the CPU seconds per 100,000 changes of what takes part, after the first batch.
    """
    url = new_database(server)
    folder.mkdir()
    process = ServerProcess("spark", folder, die_with_parent=True)
    begun_s = time.monotonic()
    process.launch(job_command(folder, keyspace=KEYSPACE, source=source, url=url))
    first: dict[str, float] = {}

    def parts_now(done: float) -> None:
        now = {**spark_cpu_s(process.pid), "PostgreSQL": tree_cpu_s(server.pid)}
        if not first:
            first.update(now, done=done)
        elif done > first["done"]:
            per = PER_MESSAGES / (done - first["done"])
            parts.update({part: (cpu_s - first[part]) * per for part, cpu_s in now.items()})

    try:
        return _drained(
            *(url, "SELECT sum(changes) FROM _shardstream.position", changes, begun_s),
            cpu_s=lambda: tree_cpu_s(process.pid) + tree_cpu_s(server.pid),
            check_alive=process.check_alive,
            on_done=parts_now,
        )
    finally:
        process.kill()


def _theirs(folder: Path, server: PostgresServer, brokers: str, changes: int) -> DrainRates:
    """Let the JDBC sink apply the first of the topic's changes."""
    url = new_database(server)
    topic = f"{KEYSPACE}.shop.orders"
    begun_s = time.monotonic()
    name = url.rpartition("/")[2]
    with jdbc_sink(folder, brokers, topic, PostgresFixture(server), name) as sink:
        return _drained(
            *(url, "SELECT count(*) FROM orders", changes, begun_s),
            cpu_s=lambda: tree_cpu_s(sink.pid) + tree_cpu_s(server.pid),
            check_alive=sink.check_alive,
        )


def _drained(
    url: str,
    query: str,
    changes: int,
    begun_s: float,
    *,
    cpu_s: Callable[[], float],
    check_alive: Callable[[], None],
    on_done: Callable[[float], None] = lambda _: None,
) -> DrainRates:
    """Ask the database until it has `changes` of them; the time of the server counts for both.

    `on_done` is called whenever it has more of them.
    """
    server_begun_s, before = cpu_s(), 0.0
    with psycopg.connect(url, autocommit=True) as connection:

        def done() -> float:
            try:
                found = connection.execute(query.encode()).fetchone()
            except psycopg.errors.UndefinedTable:
                return 0.0
            now = 0.0 if found is None else float(found[0] or 0)
            nonlocal before
            if now > before:
                before = now
                on_done(now)
            return now

        samples = sample_until(
            done,
            lambda value: value >= changes,
            cpu_s=lambda: cpu_s() - server_begun_s,
            sample_s=SAMPLE_S,
            check_alive=check_alive,
        )
    return drain_rates(samples, messages=int(samples[-1].done), started_at_s=begun_s)
