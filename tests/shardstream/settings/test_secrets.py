"""Secrets that the settings name, where they are used."""

from pathlib import Path

import pytest

from event_token.errors import UsageError
from shardstream.settings.model import load_settings
from shardstream.settings.producer_settings import shard_producer_settings


def test_a_command_of_the_settings_reaches_the_producer(tmp_path: Path) -> None:
    """`password_command` stands wherever a password does, and is tried before anything starts."""
    path = tmp_path / "shardstream.toml"
    text = """
[kafka]
bootstrap_servers = "k:9092"
secrets = {"sasl.password" = {command = ["echo", "of kafka"]}}
[keyspaces.shop.shards."-"]
flavor = "mysql"
servers = [{host = "db", user = "app", password_command = ["echo", "of db"], password_valid_s = 9}]
[keyspaces.shop.reshard]
user = "mover"
password_command = ["echo", "of mover"]
application_accounts = ["shop@%"]
"""
    path.write_text(text)
    settings = load_settings(path)
    server = shard_producer_settings(settings, "shop", "-").servers[0]
    reshard = settings.keyspace("shop").reshard

    assert server.current_password() == "of db"
    assert "of db" not in repr(server)
    assert reshard is not None
    assert reshard.password(tmp_path).read() == "of mover"
    assert settings.kafka_client()["sasl.password"] == "of kafka"

    path.write_text(text.replace('"echo", "of db"', '"false"'))
    with pytest.raises(UsageError, match="app@db: the command false failed with status 1"):
        shard_producer_settings(load_settings(path), "shop", "-")
