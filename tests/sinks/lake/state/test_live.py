"""The current state while things happen: ALTERs shard by shard, a reshard, kill -9."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.processes import with_parent_guard
from sinks.lake.state.options import StateOptions
from sinks.rule.policy import OnSameKey
from spark_consumers.state import run_state
from tests.shardstream.command_line import command, write_settings
from tests.sinks.lake.state.sales import Sales
from tests.sinks.lake.state.states import (
    HISTORY,
    history_at,
    rows_of,
    run_now,
    table_at,
)
from tests.spark_consumers.reshards import SECOND_US, SPLIT, Keyspace, resharded
from tests.spark_consumers.shop import NO_DATABASE, SHARDS, Shop
from tests.topics.shard_writer import ORDERS
from topics.kafka.client import ClientConfig
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import Row

pytestmark = pytest.mark.full

WAIT_S = 120.0
HISTORY_OPTION = ("--history", "shop.orders")


def with_column(kind: ValueKind, sql_type: str) -> TableShape:
    """The table with one more column."""
    return replace(ORDERS, columns=(*ORDERS.columns, Column("extra", kind, sql_type)))


NARROW = with_column(ValueKind.INT, "int")
WIDE = with_column(ValueKind.LONG, "bigint")


@pytest.fixture
def keyspace_of_two(kafka: KafkaCluster, keyspace: str) -> Iterator[Keyspace]:
    """Two shards with ten rows each, of the same keys."""
    made = resharded(ClientConfig({"bootstrap.servers": kafka.bootstrap_servers}), keyspace)
    yield made
    for writer in made.writers.values():
        writer.close()


def insert(of: Keyspace, shard: str, at_us: int, shape: TableShape, row: Row) -> None:
    """Insert a row of a table version."""
    writer = of.writers[shard]
    writer.commit_events([replace(writer.row(at_us, shape=shape), after=row)])


def test_a_query_follows_a_reshard_and_alters(
    spark: SparkSession, keyspace_of_two: Keyspace, tmp_path: Path
) -> None:
    """B15: a split, then ADD COLUMN and a wider type on one shard before the other.

    They come in batches of one query. Keys of two shards have one visible row; a column that a
    shard lacks is NULL in its rows.
    """
    at = keyspace_of_two
    at.heads(SECOND_US, "-80", "80-")
    at.split()
    at.switch_topology(SPLIT)
    at.heads(3 * SECOND_US, "-80", *SPLIT.targets)
    insert(at, "c0-", 3 * SECOND_US, NARROW, {"id": 100, "note": "new", "extra": 1})
    insert(at, "80-c0", 3 * SECOND_US, ORDERS, {"id": 101, "note": "old"})
    at.heads(4 * SECOND_US, "-80", *SPLIT.targets)
    insert(at, "c0-", 4 * SECOND_US, WIDE, {"id": 102, "note": "wide", "extra": 2**40})
    insert(at, "80-c0", 4 * SECOND_US, NARROW, {"id": 103, "note": "late", "extra": 3})
    at.heads(5 * SECOND_US, "-80", *SPLIT.targets)

    checkpoint = tmp_path / "checkpoint"
    end = run_state(
        *(spark, at.name, str(tmp_path / "state"), str(checkpoint)),
        {"kafka.bootstrap.servers": at.config.brokers, "maxRowsPerBatch": "2"},
        StateOptions(on_same_key=OnSameKey.NEWEST),
        trigger="availableNow",
    )

    assert end.rows == 15
    assert len(list((checkpoint / "offsets").glob("[0-9]*"))) > 6
    rows = rows_of(table_at(tmp_path))
    extra = {key: row["extra"] for key, row in rows.items() if key >= 100}
    assert extra == {100: 1, 101: None, 102: 2**40, 103: 3}
    # The targets' logs go on with key 7.
    notes = {key: row["note"] for key, row in rows.items() if key < 100}
    assert notes == dict.fromkeys(range(1, 7), "80-") | dict.fromkeys(range(7, 12), "c0-")


def test_killed_at_a_random_moment(
    spark: SparkSession, shop: Shop, keyspace: str, kafka: KafkaCluster, tmp_path: Path
) -> None:
    """After kill -9 of the command, its JVM and workers under load the table has the true rows.

    So has its history, as of each moment.
    """
    settings = dict.fromkeys(SHARDS, NO_DATABASE)
    config = str(write_settings(tmp_path, kafka.bootstrap_servers, keyspace, settings))
    places = ("--target", str(tmp_path / "state"), "--checkpoint", str(tmp_path / "checkpoint"))
    sales = Sales(shop, seed=4)
    sales.go_on(20)
    arguments = (
        "state",
        keyspace,
        *places,
        "--config",
        config,
        "--json",
        "--every",
        "0.2",
        *HISTORY_OPTION,
    )
    errors, moments = tmp_path / "errors", []
    with errors.open("w") as err:
        process = subprocess.Popen(
            with_parent_guard(command(*arguments)),
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), errors.read_text()[-3000:]
        end_s = time.monotonic() + random.Random(5).uniform(1, 6)
        while time.monotonic() < end_s:
            sales.go_on(3)
            moments.append((sales.settled_us, sales.expected()))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    sales.go_on(5)
    run_now(spark, shop, tmp_path, history=HISTORY)

    assert rows_of(table_at(tmp_path)) == sales.expected() == history_at(tmp_path, None)
    for at_us, rows in random.Random(6).sample(moments, min(len(moments), 8)):
        assert history_at(tmp_path, at_us) == rows
