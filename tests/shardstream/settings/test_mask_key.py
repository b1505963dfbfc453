"""The key of hmac masks stays with the logs that have values made with it."""

from pathlib import Path

import pytest

from event_token.errors import UsageError
from shardstream.commands.declared_topology import ensure_topology
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.settings.model import Settings, load_settings
from topics.keyspace.topology import Topology

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
hmac_key = {{file = "key"}}
rules = [{{table = "shop.people", mask = {{mail = "hmac"}}}}]
"""


def settings_of(
    folder: Path, kafka: KafkaCluster, keyspace: str, *, key: str, masks: bool = True
) -> Settings:
    """Settings with a key, and a mask that uses it."""
    (folder / "key").write_text(key)
    path = folder / "shardstream.toml"
    text = SETTINGS + (MASKS if masks else "")
    path.write_text(text.format(brokers=kafka.bootstrap_servers, keyspace=keyspace))
    return load_settings(path)


def test_another_key_for_masks_is_refused(
    kafka: KafkaCluster, keyspace: str, tmp_path: Path
) -> None:
    """F41: A producer with another key does not start; the topology tells keys apart, no key."""

    def start(key: str, *, masks: bool = True) -> Topology:
        settings = settings_of(tmp_path, kafka, keyspace, key=key, masks=masks)
        return ensure_topology(settings, keyspace)

    assert start(KEYS[0], masks=False).mask_key == ""
    known = start(KEYS[0]).mask_key
    assert len(known) == 32
    assert start(KEYS[0]).mask_key == known
    with pytest.raises(UsageError, match="hmac_key is not the key with which the masked values"):
        start(KEYS[1])
    # Without masks the key does not matter, and it is not forgotten.
    assert start(KEYS[1], masks=False).mask_key == known
    assert start(KEYS[0]).mask_key == known
