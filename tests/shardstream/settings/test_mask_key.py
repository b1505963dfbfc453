"""The key of hmac masks stays with the logs that have values made with it."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from event_token.errors import UsageError
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.settings.model import Settings, load_settings
from shardstream.settings.producer_settings import (
    MASK_KEYS_MAX,
    ensure_topology,
    filter_settings,
    with_mask_key,
)
from topics.kafka.client import ClientConfig
from topics.keyspace.topology import ShardEntry, Topology, read_topology

KEYS = ("k" * 32, "l" * 32)
SETTINGS = """
[kafka]
bootstrap_servers = "{brokers}"
[keyspaces.{keyspace}.shards."-"]
flavor = "mysql"
servers = [{{host = "db", user = "shardstream"}}]
"""
MASKS = """
[keyspaces.{keyspace}.filter]
hmac_key = {{file = "key"{key_id}}}
rules = [{{table = "shop.people", mask = {{mail = "hmac"}}}}]
"""


def settings_of(
    folder: Path,
    kafka: KafkaCluster,
    keyspace: str,
    *,
    key: str,
    masks: bool = True,
    key_id: str = "",
) -> Settings:
    """Settings with a key, and a mask that uses it."""
    (folder / "key").write_text(key)
    path = folder / "shardstream.toml"
    text = SETTINGS + (MASKS if masks else "")
    given = f', id = "{key_id}"' if key_id else ""
    path.write_text(text.format(brokers=kafka.bootstrap_servers, keyspace=keyspace, key_id=given))
    return load_settings(path)


def test_another_key_for_masks_is_refused(
    kafka: KafkaCluster, keyspace: str, tmp_path: Path
) -> None:
    """F41: A producer with another key does not start; the topology tells keys apart, no key."""

    def start(key: str, *, masks: bool = True) -> Mapping[str, str]:
        settings = settings_of(tmp_path, kafka, keyspace, key=key, masks=masks)
        return ensure_topology(settings, keyspace).mask_keys

    assert start(KEYS[0], masks=False) == {}
    known = start(KEYS[0])
    assert len(known[""]) == 32
    assert start(KEYS[0]) == known
    with pytest.raises(UsageError, match="hmac_key is not the key with which the masked values"):
        start(KEYS[1])
    # Without masks the key does not matter, and it is not forgotten.
    assert start(KEYS[1], masks=False) == known
    assert start(KEYS[0]) == known


def test_a_key_with_a_new_id_takes_the_place_of_the_old_one(
    kafka: KafkaCluster, keyspace: str, tmp_path: Path
) -> None:
    """Each id keeps its key: shards that start one after the other may still have the old one."""

    def start(key: str, key_id: str) -> Mapping[str, str]:
        settings = settings_of(tmp_path, kafka, keyspace, key=key, key_id=key_id)
        assert filter_settings(settings, keyspace).hmac_key_id == key_id
        return ensure_topology(settings, keyspace).mask_keys

    first = start(KEYS[0], "")
    both = start(KEYS[1], "2026-11")
    again = start(KEYS[0], "")
    with pytest.raises(UsageError, match=r"under the id 2026-11, .* give the new one an id"):
        start(KEYS[0], "2026-11")
    topology = read_topology(ClientConfig({"bootstrap.servers": kafka.bootstrap_servers}), keyspace)

    assert both == {**first, "2026-11": both["2026-11"]} == again
    assert both["2026-11"] != both[""]
    assert topology is not None
    assert topology.mask_keys == both


def test_the_number_of_keys_is_bounded() -> None:
    """Every look at the topology reads them."""
    topology = Topology("shop", 0, (ShardEntry("-"),))
    for n in range(MASK_KEYS_MAX):
        topology = with_mask_key(topology, str(n), f"fingerprint {n}")

    assert with_mask_key(topology, "7", "fingerprint 7") == topology
    with pytest.raises(UsageError, match="would be one more"):
        with_mask_key(topology, "new", "x")


@pytest.mark.parametrize("key_id", ["a:b", "x" * 33])
def test_an_id_that_could_not_be_told_from_a_value_is_refused(tmp_path: Path, key_id: str) -> None:
    """A colon ends it; the length is what the column has room for."""
    path = tmp_path / "shardstream.toml"
    keys = {"brokers": "k:9092", "keyspace": "shop", "key_id": f', id = "{key_id}"'}
    path.write_text((SETTINGS + MASKS).format(**keys))

    with pytest.raises(UsageError, match=r"hmac_key\.id"):
        load_settings(path)
