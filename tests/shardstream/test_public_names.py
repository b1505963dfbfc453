"""What `from shardstream import ...` gives: its names, their signatures, and what it loads."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import shardstream
from event_token import UsageError
from shardstream.installation import EXTRAS
from tests.repository import ROOT
from topics.stream.subscriber import StreamSubscriber

# A subscriber must run where none of these is installed or wanted.
NOT_FOR_SUBSCRIBERS = (
    *("pyspark", "pyarrow", "numpy", "deltalake", "spark_consumers"),
    *("producers", "resharding", "sqlglot", "pymysql", "pymysqlreplication"),
    *("typer", "rich"),
    # The compiled decoder: two megabytes that only a producer needs.
    "shardstream_decoder__mypyc",
)

# Callables by their parameters: what an application passes by name must keep its name.
PARAMETERS = {
    "Subscriber": (
        "keyspace key_range start config registry_url mode idle_timeout_s tables clock name"
    ),
    "Subscriber.from_settings": "path keyspace key_range start mode idle_timeout_s tables name",
    "Subscriber.batches": "self columns rows_max bytes_max wait_ms",
    "ClientConfig": "settings",
    "MaxHold": "max_hold_ms",
    "EventToken": "timestamp_us shard position origin",
    "compare": "a b clock",
    "ClockUncertainty": "uncertainty_us mariadb_longest_statement_us",
    "KeyRange": "start end",
    "KeyRange.parse": "text",
    "StreamPosition": "epoch frontier_us shards",
    "StreamPosition.from_string": "text",
    "EventToken.from_string": "text",
    "ShardPosition": "offset seq token",
    "read_topology": "config keyspace consumer",
    "watch_topology": "config keyspace interval_s stop",
    "vindex_named": "name",
    "event_to_json_dict": "event",
    "event_to_json_text": "event with_position",
    "FreshReader": "keyspace shard servers flavor clock was_target",
    "clock_from_settings": "path",
    "FreshReader.execute": "self sql args include_event_token compare_event_token at_least "
    "max_age_ms wait_s server prefer",
    "FreshReader.committed": "self connection",
    "FreshRows": "rows token fresher server is_primary has_waited age_ms complete_to",
    "KeyspaceReader": "kafka keyspace servers flavor clock",
    "KeyspaceReader.execute": "self sql args on table at_least max_age_ms wait_s server prefer",
    "KeyspaceReader.scatter": "self sql args at_least max_age_ms wait_s server",
    "KeyspaceReader.shard_of": "self on table",
    "KeyspaceReader.committed": "self connection shard",
    "KeyspaceRows": "rows tokens complete_to age_ms",
    "ReadYourWrites": "writes",
    "ReadYourWrites.from_cookie": "text",
    "ReadYourWrites.wrote": "self token",
    "ReadYourWrites.to_cookie": "self",
    "register": "spark",
    "build_session": "name master settings",
    "run_changelog": "spark keyspace target checkpoint options storage_options running",
    "run_state": "spark keyspace target checkpoint options policy storage_options running",
    "StateOptions": "tables accept_skip on_same_key on_type_change on_truncate on_partial "
    "drop_columns history partitions buckets",
    "run_table_topics": "spark checkpoint options topics running",
    "TopicOptions": "envelope tasks partitions keep_ms move_window_us moves_max registry_url "
    "on_truncate tables accept_skip on_same_key",
    "EnvelopeOptions": "keyspace prefix format schemas decimal time unsigned tombstones",
    "Batches": "subscriber rows ms key_scope lasts_ms",
    "check_changelog": "target storage_options",
    "run_database": "spark keyspace url checkpoint options policy running",
    "run_database_locally": "keyspace url options policy running",
    "SqlDatabase": "url options",
    "SqlDatabase.apply_arrow": "self batch changes",
    "SqlDatabase.held": "self locked",
    "DatabaseOptions": "follower schema deletes nul_text on_bad_row tombstones_us partitions "
    "key_range key_scope is_loading left tables accept_skip on_same_key on_type_change on_truncate "
    "on_partial drop_columns",
    "PlannedBatch": "query_id batch_id begin end",
    "replay_changelog": "target until_us accept_skip storage_options",
    "Cache": "store readers options codec vindex primary_after prefer",
    "Cache.from_settings": "path name readers codec vindex",
    "Cache.get_or_load": "self key load newer_than",
    "Cache.get_or_stale": "self key load newer_than",
    "Cache.get_many": "self keys load_many newer_than",
    "Cache.forget": "self keys",
    "Cache.invalidate": "self keys token",
    "Cache.cached": "self key",
    "Cache.counters": "self",
    "Cache.set_readers": "self readers",
    "AsyncCache": "store readers options codec vindex primary_after prefer",
    "AsyncCache.from_settings": "path name readers codec vindex",
    "AsyncCache.get_or_load": "self key load newer_than",
    "AsyncCache.get_many": "self keys load_many newer_than",
    "Read.__call__": "self sql args on shard table",
    "Codec": "number name encode decode",
}

SETTINGS = """
[kafka]
bootstrap_servers = "kafka-1:9092"
[clock]
uncertainty_us = 5000
[keyspaces.shop.shards."-"]
flavor = "mysql"
servers = [{host = "db-a", user = "shardstream"}]
"""


def type_checked_imports() -> dict[str, str]:
    """Name by name, the module that the type checker is told of."""
    tree = ast.parse((ROOT / "shardstream/__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: node.module or ""
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def loaded_modules(program: str) -> set[str]:
    """Top-level packages that a program of its own has loaded at its end."""
    program += "\nimport sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


def test_names_are_the_same_for_type_checkers_and_at_run_time() -> None:
    """The imports for type checkers and the modules for run time name the same."""
    assert type_checked_imports() == shardstream._MODULES


@pytest.mark.parametrize("name", shardstream.__all__)
def test_every_name_can_be_imported(name: str) -> None:
    """Each public name is there, and `dir` lists it."""
    assert getattr(shardstream, name) is not None
    assert name in dir(shardstream)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_signatures_stay(name: str) -> None:
    """Parameters keep their names and their order."""
    found: object = shardstream
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)

    assert " ".join(inspect.signature(found).parameters) == PARAMETERS[name]


def test_a_name_that_is_not_public_is_refused() -> None:
    """An unknown name is an AttributeError, as in any module."""
    with pytest.raises(AttributeError, match="has no attribute 'Planner'"):
        getattr(shardstream, "Planner")  # noqa: B009 - a type checker refuses the plain form


def test_a_subscriber_loads_neither_spark_nor_producers() -> None:
    """Importing what a subscriber needs loads no Spark, no producer and no command line."""
    names = (
        "Subscriber, ClientConfig, VEvent, EventToken, Order, compare, KeyRange, StreamPosition, "
        "read_topology, event_to_json_text, Halt, Retry, PositionTooOld"
    )

    assert loaded_modules(f"from shardstream import {names}").isdisjoint(NOT_FOR_SUBSCRIBERS)


def test_the_command_line_loads_no_extra() -> None:
    """Each command imports its own parts: without Spark and the page all others still run."""
    assert loaded_modules("import shardstream.commands.app").isdisjoint(EXTRAS)


def test_a_cache_loads_neither_kafka_nor_a_store_that_is_not_used() -> None:
    """An application server with a cache needs no broker's client, and no Redis client it lacks."""
    loaded = loaded_modules("from shardstream import Cache, AsyncCache, open_store")

    assert loaded.isdisjoint({*NOT_FOR_SUBSCRIBERS, "confluent_kafka", "redis", "fastavro"})


def test_settings_load_no_more_than_pydantic(tmp_path: Path) -> None:
    """A subscriber made from a settings file loads its reader, and none of the heavy parts."""
    path = tmp_path / "shardstream.toml"
    path.write_text(SETTINGS)
    program = f"from shardstream import Subscriber; Subscriber.from_settings({str(path)!r}, 'shop')"

    assert loaded_modules(program) & set(NOT_FOR_SUBSCRIBERS) == {"producers"}  # their options


@pytest.mark.parametrize(
    ("program", "extra"),
    [
        ("Subscriber('shop', config=ClientConfig({'bootstrap.servers': 'x'})).batches()", "arrow"),
        ("import shardstream; shardstream.EventBatch", "arrow"),
        ("import shardstream; shardstream.Batches", "spark"),
    ],
)
def test_the_smallest_extra_that_is_enough_is_named(program: str, extra: str) -> None:
    """Who lacks pyarrow is told to install `arrow` for batches, and `spark` for Spark's names."""
    begin = "import sys; sys.modules['pyarrow'] = None; "
    imports = "from shardstream import ClientConfig, Subscriber; "
    done = subprocess.run(
        [sys.executable, "-c", begin + imports + program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )

    assert done.returncode == 1
    assert (
        f"pyarrow is not installed; it comes with an extra: pip install 'shardstream[{extra}]'"
        in (done.stderr)
    )


def test_register_loads_spark() -> None:
    """The names for Spark come from the same door, and load it only when they are used."""
    assert {"pyspark", "spark_consumers"} <= loaded_modules("from shardstream import register")


def test_subscriber_from_settings(tmp_path: Path) -> None:
    """A settings file gives the cluster and the clocks; the subscriber is the one of `topics`."""
    path = tmp_path / "shardstream.toml"
    path.write_text(SETTINGS)

    subscriber = shardstream.Subscriber.from_settings(path, "shop", start="earliest")

    assert isinstance(subscriber, shardstream.Subscriber)
    assert isinstance(subscriber, StreamSubscriber)
    assert subscriber.keyspace == "shop"
    assert subscriber.clock == shardstream.ClockUncertainty(uncertainty_us=5_000)
    assert shardstream.clock_from_settings(path) == subscriber.clock
    with pytest.raises(UsageError, match="the settings name: shop"):
        shardstream.Subscriber.from_settings(path, "commerce")


def test_names_of_changes_print_as_such() -> None:
    """What an event has for `op` and `type` prints as people write it, and still is its text."""
    for member in (*shardstream.Op, *shardstream.EventType):
        assert str(member) == f"{member}" == member.value == member
