"""The stack's database servers, as the settings name them, with the shop's accounts."""

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import pymysql

from shardstream.demo.shop import APPLICATION, DATABASE
from shardstream.settings.model import Settings

KEYSPACE: Final = "commerce"
READER: Final = "reader"
# One password for the accounts of a shop that sells nothing.
PASSWORD_VARIABLE: Final = "SHOP_PASSWORD"  # noqa: S105 - the name of a variable
# A server that is killed resets connections at once; one whose host is gone says nothing.
CONNECT_TIMEOUT_S: Final = 10
READ_TIMEOUT_S: Final = 60

Connect = Callable[[], Any]


def connects(settings: Settings, user: str) -> dict[str, Connect]:
    """Return how to connect to each shard, also to targets, with an account of the shop."""
    password = os.environ.get(PASSWORD_VARIABLE, "")
    shards = settings.keyspace(KEYSPACE).all_shards
    return {shard: _connect(each.servers[0], user, password) for shard, each in shards.items()}


def writers(settings: Settings) -> dict[str, Connect]:
    """Return the connections of the account that a switch locks."""
    return connects(settings, APPLICATION)


def largest(shards: Mapping[str, Connect], column: str, table: str) -> int:
    """Return the largest value of an integer column on these shards; 0 if there is no row."""
    found = 0
    for connect in shards.values():
        with connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT COALESCE(MAX({column}), 0) FROM {table}")  # noqa: S608 - ours
            # MAX of an unsigned column and 0 is a DECIMAL.
            found = max(found, int(cursor.fetchone()[0]))
    return found


def _connect(server: Any, user: str, password: str) -> Connect:
    def connect() -> Any:
        return pymysql.connect(
            host=server.host,
            port=server.port,
            user=user,
            password=password,
            database=DATABASE,
            charset="utf8mb4",
            init_command="SET time_zone = '+00:00'",
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            ssl_disabled=True,
        )

    return connect
