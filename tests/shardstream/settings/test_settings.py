"""The settings file: what it takes, what it refuses, and that secrets stay out of it."""

from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from databases.server import Platform
from event_token import ClockUncertainty
from event_token.errors import UsageError
from producers.clock import ChronyBound, ConstantBound
from producers.filters.rules import Mask, MaskKind
from producers.typed_columns import DECLARABLE
from shardstream.commands.reshard import create
from shardstream.settings.model import ProducerSection, VindexSection, load_settings
from shardstream.settings.producer_settings import (
    shard_producer_settings,
    topic_settings,
    with_vindexes,
)
from topics.keyspace.topology import ShardEntry, TableVindex, Topology
from topics.keyspace.vindexes import vindex_named

GOOD = """
[kafka]
bootstrap_servers = "127.0.0.1:19092"
[kafka.client]
"security.protocol" = "SASL_SSL"
"socket.keepalive.enable" = true
[kafka.secrets]
"sasl.password" = {env = "KAFKA_PASSWORD"}
[producer]
heartbeat_ms = 100
[producer.typed_columns]
"shop.users.id" = "uuid"
[keyspaces.commerce.shards."-80"]
flavor = "mysql"
servers = [{host = "db-a", port = 3306, user = "shardstream", password_file = "secret"}]
[keyspaces.commerce.shards."80-"]
flavor = "mariadb"
[[keyspaces.commerce.shards."80-".servers]]
host = "db-b"
user = "shardstream"
password_env = "DB_PASSWORD"
tls = {ca = "ca.pem"}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KAFKA_PASSWORD", "kafka-marker")
    monkeypatch.setenv("DB_PASSWORD", "env-marker")
    (tmp_path / "secret").write_text("file-marker\n")
    path = tmp_path / "shardstream.toml"
    path.write_text(GOOD)
    return path


def test_a_platform_is_one_of_those_that_are_known(config: Path) -> None:
    """Named per shard, and else asked; a misspelt one is one line with the names there are."""
    found = load_settings(config)
    flavor = 'flavor = "mysql"\n'
    config.write_text(GOOD.replace(flavor, f'{flavor}platform = "rds"\n'))
    named = load_settings(config)
    config.write_text(GOOD.replace(flavor, f'{flavor}platform = "amazon"\n'))

    with pytest.raises(UsageError) as caught:
        load_settings(config)

    assert shard_producer_settings(found, "commerce", "-80").platform is None
    assert shard_producer_settings(named, "commerce", "-80").platform is Platform.RDS
    _, line = str(caught.value).splitlines()
    assert line == (
        "  keyspaces.commerce.shards.-80.platform: must be 'plain', 'rds', 'aurora', 'cloudsql' or "
        "'azure', not 'amazon'"
    )


def test_everything_arrives_where_it_is_used(config: Path) -> None:
    """Servers, TLS files, client settings and secrets reach the producer and the Kafka client."""
    settings = load_settings(config)

    first = shard_producer_settings(settings, "commerce", "-80")
    second = shard_producer_settings(settings, "commerce", "80-")
    assert (first.flavor, first.heartbeat_ms) == ("mysql", 100)
    assert [(s.name, s.current_password(), s.tls) for s in first.servers] == [
        ("db-a:3306", "file-marker", None)
    ]
    assert second.servers[0].current_password() == "env-marker"
    assert second.typed_columns.type_of("shop.users.id") == "uuid"
    assert second.servers[0].tls is not None
    assert second.servers[0].tls.ca == str(config.parent / "ca.pem")
    client = settings.kafka_client()
    assert client["sasl.password"] == "kafka-marker"
    assert client["socket.keepalive.enable"] == "true"
    assert topic_settings(settings).replication_factor == -1


def test_the_clock_of_the_host_is_known_by_a_constant_or_by_chrony(config: Path) -> None:
    """By default the constant of `[clock]`; the shards of a process share chrony's answers."""
    section = "[clock]\nuncertainty_us = 7\n"
    config.write_text(section + GOOD)
    stated = load_settings(config)
    config.write_text(f'{section}source = "chrony"\n{GOOD}')
    asked = load_settings(config)

    assert shard_producer_settings(stated, "commerce", "-80").host_clock == ConstantBound(7)
    one, other = (shard_producer_settings(asked, "commerce", s).host_clock for s in ("-80", "80-"))
    assert isinstance(one, ChronyBound)
    assert one is other
    assert asked.clock_uncertainty() == stated.clock_uncertainty() == ClockUncertainty(7)


def test_the_environment_wins(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable SHARDSTREAM_A__B overrides the file's a.b."""
    monkeypatch.setenv("SHARDSTREAM_KAFKA__BOOTSTRAP_SERVERS", "elsewhere:9092")
    monkeypatch.setenv("SHARDSTREAM_READER__RECORD_BYTES_MAX", "300000000")

    client = load_settings(config).kafka_client()
    assert client.brokers == "elsewhere:9092"
    assert client.record_bytes_max == 300_000_000


def test_no_secret_in_any_repr(config: Path) -> None:
    """Neither settings nor what is made of them show a secret."""
    settings = load_settings(config)
    shard = shard_producer_settings(settings, "commerce", "-80")

    shown = f"{settings!r} {shard!r} {settings.kafka_client()!r}"
    assert "marker" not in shown


def test_all_wrong_settings_are_listed_at_once(config: Path) -> None:
    """One error names every wrong setting with its place."""
    text = GOOD.replace('flavor = "mysql"', 'flavor = "oracle"').replace(
        "heartbeat_ms = 100", "heartbeat_ms = 1\nhartbeat = 2"
    )
    config.write_text(text)

    with pytest.raises(UsageError) as raised:
        load_settings(config)
    message = str(raised.value)
    assert "keyspaces.commerce.shards.-80.flavor" in message
    assert "producer.heartbeat_ms" in message
    assert "producer.hartbeat" in message
    assert "3 wrong setting(s)" in message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'host = "db-b"',
            'hosts = "db-b"',
            (
                "  keyspaces.commerce.shards.80-.servers[0].host: is missing\n"
                "  keyspaces.commerce.shards.80-.servers[0].hosts: is not a setting; "
                "did you mean host?"
            ),
        ),
        ("port = 3306", "port = 70000", "servers[0].port: must be at most 65535, not 70000"),
        ("heartbeat_ms = 100", "heartbeat_ms = 'x'", "must be a whole number, not 'x'"),
        ('"shop.users.id" = "uuid"', '"a.b.c" = "uid"', "or 'bytes', not 'uid'"),
        ('"mysql"', '"oracle"', "80.flavor: must be 'mysql' or 'mariadb', not 'oracle'"),
        ("[producer]", "[producers]", "producers: is not a setting; did you mean producer?"),
        ('{env = "KAFKA_PASSWORD"}', '"plain"', 'kafka.secrets."sasl.password": must be a table'),
    ],
)
def test_a_wrong_setting_is_described_in_the_words_of_the_file(
    config: Path, old: str, new: str, said: str
) -> None:
    """A message names the setting, what is accepted and what is there, but no secret."""
    config.write_text(GOOD.replace(old, new, 1))

    with pytest.raises(UsageError) as raised:
        load_settings(config)
    message = str(raised.value)
    assert said in message
    assert "Input should" not in message
    assert "plain" not in message


def test_a_folder_is_no_settings_file(config: Path) -> None:
    """--config FOLDER names the file that is probably meant."""
    with pytest.raises(UsageError, match=r"is a folder.*shardstream\.toml"):
        load_settings(config.parent)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"80-"', '"70-"', "shards -80 and 70- overlap"),
        ('"80-"', '"90-c0"', "no shard has the keys 80-90, c0-"),
        ('"-80"', '"40-80"', "no shard has the keys -40"),
        ('shards."80-"', 'shards."zz-"', "zz-"),
        ("[keyspaces.commerce", "[keyspaces.'com.merce'", "com.merce"),
        ("[kafka]", "[kafka", "is not TOML"),
    ],
)
def test_wrong_names_are_refused(config: Path, old: str, new: str, said: str) -> None:
    """F37: Overlapping or misnamed shards, dotted keyspaces, broken TOML: one clear error."""
    config.write_text(GOOD.replace(old, new))

    with pytest.raises(UsageError, match=said):
        load_settings(config)


def test_unknown_shard_and_keyspace_name_those_that_exist(config: Path) -> None:
    """The error for an unknown name lists the known ones."""
    settings = load_settings(config)

    with pytest.raises(UsageError, match="-80, 80-"):
        settings.shard("commerce", "c0-")
    with pytest.raises(UsageError, match="commerce"):
        settings.shard("shop", "-80")


def test_missing_secrets_are_named(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret's variable that is not set, or a file that is not there, is named."""
    settings = load_settings(config)
    monkeypatch.delenv("KAFKA_PASSWORD")
    (config.parent / "secret").unlink()

    with pytest.raises(UsageError, match="KAFKA_PASSWORD"):
        settings.kafka_client()
    with pytest.raises(UsageError, match="secret"):
        settings.shard("commerce", "-80").servers[0].password(config.parent).read()


def test_no_file_says_how_to_get_one(tmp_path: Path) -> None:
    """Without a settings file the error says how to get one."""
    with pytest.raises(UsageError, match="local up"):
        load_settings(tmp_path / "none.toml")


def test_vindexes_join_the_topology_and_stay(config: Path) -> None:
    """F41: Vindexes of new tables are added; another one for a table that has one is refused."""
    orders = TableVindex("shop", "orders", ("customer",), "hash")
    items = TableVindex("shop", "items", ("customer",), "hash")
    topology = Topology("commerce", 0, (ShardEntry("-"),), (orders,))

    assert with_vindexes(topology, (orders, items)).vindexes == (orders, items)
    assert with_vindexes(topology, ()) == topology
    with pytest.raises(
        UsageError, match=r"shop\.orders the vindex hash\(id\), .* hash\(customer\)"
    ):
        with_vindexes(topology, (replace(orders, columns=("id",)),))
    config.write_text(
        GOOD
        + "[[keyspaces.commerce.vindexes]]\n"
        + 'database = "shop"\ntable = "orders"\ncolumn = "customer"\nvindex = "md5"\n'
    )
    with pytest.raises(UsageError, match=r"vindexes\[0\]\.vindex: .*'hash'"):
        load_settings(config)


def test_filter_rules_reach_the_producer(config: Path) -> None:
    """Patterns, rules, masks and the HMAC key arrive; the key is in no repr."""
    rules = """
[keyspaces.commerce.filter]
include = ["/shop\\\\..*/"]
exclude = ["shop.tmp"]
hmac_key = {env = "KAFKA_KEY"}
[[keyspaces.commerce.filter.rules]]
table = "shop.people"
columns = ["id", "mail", "name"]
where = "id BETWEEN 1 AND 9"
mask = {mail = "hmac", name = {truncate = 1}}
"""
    config.write_text(GOOD + rules.replace("KAFKA_KEY", "DB_KEY"))
    with pytest.raises(UsageError, match=r"commerce: hmac_key: the variable DB_KEY .* not set"):
        shard_producer_settings(load_settings(config), "commerce", "-80")
    (config.parent / "key").write_text("k" * 32)
    config.write_text(GOOD + rules.replace('env = "KAFKA_KEY"', 'file = "key"'))
    found = shard_producer_settings(load_settings(config), "commerce", "-80").filters
    assert found.includes("shop", "people")
    assert not found.includes("shop", "tmp")
    rule = found.rule_for("shop", "people")
    assert rule is not None
    assert rule.masks == {"mail": Mask(MaskKind.HMAC), "name": Mask(MaskKind.TRUNCATE, 1)}
    assert found.hmac_key == b"k" * 32
    assert "kkk" not in repr(found)

    config.write_text(GOOD + rules.replace('env = "KAFKA_KEY"', 'file = "key"').replace("9", "x"))
    with pytest.raises(UsageError, match=r"keyspace commerce, filter: rule of shop\.people: x"):
        shard_producer_settings(load_settings(config), "commerce", "-80")


def test_filtered_tables_are_not_resharded(config: Path) -> None:
    """The logs do not hold them whole: refused by name before anything is asked or made."""
    rules = """
[[keyspaces.commerce.filter.rules]]
table = "shop.orders"
columns = ["id"]
[[keyspaces.commerce.vindexes]]
database = "shop"
table = "orders"
column = "id"
vindex = "hash"
"""
    config.write_text(GOOD + rules)
    with pytest.raises(UsageError, match=r"filter rules apply to shop\.orders"):
        create("commerce", "r1", ["80-"], ["80-c0", "c0-"], config)


def test_names_that_settings_take_are_those_that_the_packages_know() -> None:
    """The closed sets of the settings file agree with the packages that give them a meaning."""
    vindexes = get_args(VindexSection.model_fields["vindex"].annotation)
    types = get_args(get_args(get_type_hints(ProducerSection)["typed_columns"])[1])

    assert [vindex_named(name).name for name in vindexes] == list(vindexes)
    assert set(types) == set(DECLARABLE)
