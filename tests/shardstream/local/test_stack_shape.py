"""What a stack consists of, without starting it."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token import Flavor, KeyRange, UsageError, tiles
from shardstream.local.kafka_cluster import broker_settings
from shardstream.local.stack import SHARDS_MAX, Stack, StackShape, even_shards, settings_text
from shardstream.settings.model import load_settings


@given(st.integers(1, SHARDS_MAX))
def test_even_shards_tile_the_keyspace(count: int) -> None:
    """Any number of shards covers every keyspace id once."""
    ranges = [KeyRange.parse(name) for name in even_shards(count)]

    assert len(ranges) == count
    assert tiles(ranges, KeyRange.parse("-"))


def test_shard_names_are_the_usual_ones() -> None:
    """Powers of two are split at the usual bounds."""
    assert even_shards(1) == ["-"]
    assert even_shards(2) == ["-80", "80-"]
    assert even_shards(4) == ["-40", "40-80", "80-c0", "c0-"]


@pytest.mark.parametrize("count", [0, SHARDS_MAX + 1])
def test_impossible_number_of_shards_is_refused(count: int) -> None:
    """A stack has at least one shard, and no more than a machine can run."""
    with pytest.raises(UsageError, match=f"not {count}"):
        even_shards(count)


def test_settings_file_is_what_the_commands_read(tmp_path: Path) -> None:
    """The file that `up` writes passes the settings' own checks and leads to the servers."""
    (tmp_path / "password").write_text("secret\n")
    path = tmp_path / "shardstream.toml"
    addresses = {"-80": ("127.0.0.1", 1001), "80-": ("127.0.0.1", 1002), "80-c0": ("::1", 1003)}

    path.write_text(settings_text("shop", Flavor.MARIADB, "127.0.0.1:1000", addresses, ["80-c0"]))
    settings = load_settings(path)

    server = settings.shard("shop", "80-").servers[0]
    assert tomllib.loads(path.read_text())["kafka"]["bootstrap_servers"] == "127.0.0.1:1000"
    assert settings.shard("shop", "80-").flavor == "mariadb"
    assert (server.host, server.port, server.user) == ("127.0.0.1", 1002, "shardstream")
    assert server.password(tmp_path).read() == "secret"
    assert [*settings.keyspace("shop").targets] == ["80-c0"]
    assert settings.shard("shop", "80-c0").servers[0].port == 1003


def test_three_brokers_survive_the_loss_of_one() -> None:
    """Internal topics have three copies, two of which must be in step; one broker needs one."""
    ports = {node: (2000 + node, 3000 + node) for node in (1, 2, 3)}

    three = broker_settings(2, ports, Path("/folder"))
    one = broker_settings(1, {1: (2001, 3001)}, Path("/folder"))

    for topic in ("transaction.state.log", "share.coordinator.state.topic"):
        assert (three[f"{topic}.replication.factor"], three[f"{topic}.min.isr"]) == ("3", "2")
        assert (one[f"{topic}.replication.factor"], one[f"{topic}.min.isr"]) == ("1", "1")
    assert three["controller.quorum.voters"].count("@") == 3


def test_folder_keeps_its_shape(tmp_path: Path) -> None:
    """A folder that holds a stack of another shape is refused before anything starts."""
    Stack(tmp_path, StackShape(flavor=Flavor.MYSQL, shards=2, brokers=1))

    with pytest.raises(UsageError, match="2 x mysql"):
        Stack(tmp_path, StackShape(flavor=Flavor.MARIADB, shards=2, brokers=1))
