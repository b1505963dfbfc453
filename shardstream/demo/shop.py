"""The shop: its tables, its accounts on the servers, and how its rows are sharded."""

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, Final

import pymysql

from resharding.grants import NEEDED_TO_SWITCH
from shardstream.local.database_server import DatabaseServer
from shardstream.local.shape import PASSWORD_FILE
from topics.keyspace.vindexes import vindex_named

DATABASE: Final = "shop"
# All rows of a customer are on the customer's shard.
SHARDING_COLUMNS: Final = {
    "customers": "id",
    "orders": "customer_id",
    "order_items": "customer_id",
    "coupons": "customer_id",
}
VINDEX: Final = "hash"
APPLICATION: Final = "shop"
RESHARDER: Final = "resharder"

Connect = Callable[[], Any]


def keyspace_id(customer_id: int) -> bytes:
    """Return a customer's keyspace id, by the vindex that the settings declare for all tables."""
    return vindex_named(VINDEX).keyspace_id(customer_id)


def connect_as_root(server: DatabaseServer) -> Connect:
    """Return a function that connects as root, in UTC."""
    return lambda: server.connect(init_command="SET time_zone = '+00:00'", autocommit=False)


def connect_as_application(server: DatabaseServer) -> Connect:
    """Return a function that connects with the shop's account, which a switch locks."""

    def connect() -> Any:
        return pymysql.connect(
            host=server.host,
            port=server.port,
            user=APPLICATION,
            password=server.password,
            database=DATABASE,
            charset="utf8mb4",
            init_command="SET time_zone = '+00:00'",
            ssl_disabled=True,
        )

    return connect


def make_accounts(server: DatabaseServer, *, is_target: bool) -> None:
    """Create the shop's account, locked on targets, and the one that reshards."""
    lock = "LOCK" if is_target else "UNLOCK"
    grants = ", ".join(NEEDED_TO_SWITCH[server.flavor])
    with server.connect() as connection, connection.cursor() as cursor:
        # Outside the binlog, as the stack's own account.
        cursor.execute("SET SESSION sql_log_bin = 0")
        for user in (APPLICATION, RESHARDER):
            cursor.execute(f"CREATE USER '{user}'@'%%' IDENTIFIED BY %s", (server.password,))
        cursor.execute(f"ALTER USER '{APPLICATION}'@'%' ACCOUNT {lock}")
        cursor.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {DATABASE}.* TO '{APPLICATION}'@'%'"
        )
        cursor.execute(f"GRANT {grants} ON *.* TO '{RESHARDER}'@'%'")


def create_tables(server: DatabaseServer, script: str | None = None) -> None:
    """Create the shop's database and tables on one shard; `script`: other tables."""
    script = script or files("shardstream.demo").joinpath("shop.sql").read_text()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {DATABASE}")
        for statement in script.split(";\n"):
            if statement.strip():
                cursor.execute(statement)


def settings_of_the_shop(
    keyspace: str, sharding_columns: Mapping[str, str] = SHARDING_COLUMNS
) -> str:
    """Return the shop's part of the settings file: vindexes, and the account that reshards."""
    quote = json.dumps
    # The demo's servers do not wait for the disk.
    lines = ["", "[producer]", "accept_loss_at_server_crash = true"]
    for table, column in sharding_columns.items():
        lines += [
            "",
            f"[[keyspaces.{quote(keyspace)}.vindexes]]",
            f"database = {quote(DATABASE)}",
            f"table = {quote(table)}",
            f"column = {quote(column)}",
            f"vindex = {quote(VINDEX)}",
        ]
    lines += [
        "",
        f"[keyspaces.{quote(keyspace)}.reshard]",
        f"user = {quote(RESHARDER)}",
        f"password_file = {quote(PASSWORD_FILE)}",
        f"application_accounts = [{quote(APPLICATION + '@%')}]",
    ]
    return "\n".join(lines) + "\n"


def count_rows(connect: Connect) -> int:
    """Count the rows of all tables of one shard."""
    with connect() as connection, connection.cursor() as cursor:
        count = 0
        for table in SHARDING_COLUMNS:
            cursor.execute(f"SELECT COUNT(*) FROM {DATABASE}.{table}")  # noqa: S608 - our own
            count += cursor.fetchone()[0]
        return count
