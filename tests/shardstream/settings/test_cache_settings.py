"""The settings of caches, and the caches that are made of them."""

from pathlib import Path

import pytest

from caching.client.options import CacheOptions
from event_token.errors import UsageError
from shardstream import AsyncCache, Cache
from shardstream.settings.model import load_settings
from tests.caching.client.model import Model
from tests.caching.stores.opened import open_memory

SETTINGS = """
[kafka]
bootstrap_servers = "127.0.0.1:19092"
[keyspaces.shop.shards."-"]
flavor = "mysql"
servers = [{host = "db-a", user = "shardstream"}]
[[keyspaces.shop.vindexes]]
database = "shop"
table = "users"
column = "id"
vindex = "numeric"
[caches.pages]
keyspace = "shop"
store = "redis://cache-1"
keys = "shop.keys:KEYS"
ttl_s = 60
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "shardstream.toml"
    path.write_text(SETTINGS)
    return path


def test_a_cache_takes_its_defaults_from_one_place(config: Path) -> None:
    """What the file leaves out is what a cache without a file has."""
    section = load_settings(config).cache("pages")

    assert section.ttl_s == 60
    assert section.buckets == CacheOptions().buckets
    assert section.key_ranges == ("-",)
    with pytest.raises(UsageError, match="unknown cache 'page'; the settings name: pages"):
        load_settings(config).cache("page")


def test_the_password_is_read_from_where_the_file_says(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read apart from the URL, and no repr shows it; memcached has none."""
    monkeypatch.setenv("CACHE_PASSWORD", "p@ss/word")
    text = SETTINGS.replace('"redis://cache-1"', '"rediss://app@cache-1:6380/2"')
    config.write_text(text + 'password_env = "CACHE_PASSWORD"\n')
    settings = load_settings(config)

    password = settings.cache_password("pages")
    assert password is not None
    assert password.read() == "p@ss/word"
    assert "p@ss" not in repr((settings, password))

    config.write_text(config.read_text().replace("rediss://app@", "memcached://"))
    with pytest.raises(UsageError, match="this kind of store has no passwords"):
        load_settings(config)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("ttl_s = 60", "buckets = 100", "caches.pages.buckets: must be a multiple of 64, not 100"),
        ("ttl_s = 60", "ttl = 60", "did you mean ttl_s?"),
        ("ttl_s = 60", "on_behind = 'stop'", "caches.pages.on_behind: must be 'serve' or 'bypass'"),
        ("ttl_s = 60", "key_ranges = []", "caches.pages.key_ranges: must not be empty"),
        ("ttl_s = 60", "key_ranges = ['80-40']", "caches.pages: "),
        ('"shop.keys:KEYS"', '"shop.keys"', "caches.pages.keys: must be of the form"),
        ('keyspace = "shop"', 'keyspace = "sop"', "unknown keyspace 'sop'; the settings name: s"),
        ("redis://cache-1", "redis://:marker@cache-1", "store: the URL contains a password"),
        (
            "redis://cache-1",
            "redis://cache-1?password=marker",
            "store: the URL contains a password",
        ),
        ("caches.pages", 'caches."a b"', "'a b' is not a cache name"),
    ],
)
def test_what_is_wrong_is_named(config: Path, old: str, new: str, said: str) -> None:
    """Each wrong setting by its place, and no password in the message."""
    config.write_text(SETTINGS.replace(old, new))

    with pytest.raises(UsageError, match="1 wrong setting") as raised:
        load_settings(config)
    assert said in str(raised.value)
    assert "marker" not in str(raised.value)


def test_caches_from_the_settings_file(config: Path) -> None:
    """Store, choices and the vindex of the keyspace come from the file."""
    readers = {"-": Model(open_memory()).readers["-80"]}

    cache = Cache.from_settings(config, "pages", readers)

    assert cache._core.options.ttl_s == 60
    assert cache._store.layout.cache == "pages"
    assert cache._vindex == "numeric"
    assert isinstance(AsyncCache.from_settings(config, "pages", readers), AsyncCache)
    config.write_text("[clock]\nuncertainty_us = 7\n" + SETTINGS)
    assert (
        Cache.from_settings(config, "pages", readers)._store.clock_uncertainty.uncertainty_us == 7
    )
    other = '[[keyspaces.shop.vindexes]]\ndatabase = "shop"\ntable = "t"\ncolumn = "id"\n'
    config.write_text(SETTINGS + other + 'vindex = "hash"\n')
    with pytest.raises(UsageError, match="hash, numeric"):
        Cache.from_settings(config, "pages", readers)
    assert Cache.from_settings(config, "pages", readers, vindex="hash")._vindex == "hash"
