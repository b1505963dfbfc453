"""Accounts with exactly the privileges that docs/operations.md grants."""

import functools
import re

from event_token import Flavor
from resharding.servers import ReshardServer
from tests.database_servers import DatabaseFixture
from tests.repository import ROOT

RESHARDER = "resharder"
RESHARDER_PASSWORD = "y-8-w"
PRODUCER = "shardstream"
GRANT = r"^GRANT (.+) ON {on} TO {account}@'%';$"
FOR_TRIGGERS = {Flavor.MYSQL: "SET_ANY_DEFINER", Flavor.MARIADB: "SET USER"}
# As the page says: two privileges have other names on MariaDB, and one is not needed.
ON_MARIADB = {"CONNECTION_ADMIN": "CONNECTION ADMIN", "SET_ANY_DEFINER": "SET USER"}


def privileges_on_page(account: str, on: str) -> list[str]:
    """The privileges that the page grants to an account, as it is for MySQL."""
    text = (ROOT / "docs/operations.md").read_text("utf-8")
    pattern = GRANT.format(on=re.escape(on), account=account)
    found = re.findall(pattern, text, re.MULTILINE)
    names = [name for grants in found for name in grants.split(", ")]
    assert len(names) > 1
    return names


def documented_producer_grants(flavor: Flavor) -> list[str]:
    """What the page grants to a producer on everything; MariaDB shows filters to one more.

    SHOW GRANTS calls REPLICA MONITOR by its other name.
    """
    names = privileges_on_page(PRODUCER, "*.*")
    return names if flavor is Flavor.MYSQL else [*names, "SLAVE MONITOR"]


def grant_internal_tables(database: DatabaseFixture) -> None:
    """Grant the producer's account of a server what the page does on `_shardstream`."""
    names = ", ".join(privileges_on_page(PRODUCER, "_shardstream.*"))
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")  # each server has an account of its own
        cursor.execute(
            f"GRANT {names} ON `\\_shardstream`.* TO '{database.user}'@'{database.host}'"
        )


def documented_grants(flavor: Flavor) -> list[str]:
    """The privileges that the page tells an operator to grant on everything."""
    names = privileges_on_page(RESHARDER, "*.*")
    if flavor is Flavor.MYSQL:
        return names
    return [ON_MARIADB.get(name, name) for name in names if name != "XA_RECOVER_ADMIN"]


@functools.cache
def create_resharder(database: DatabaseFixture) -> None:
    """Create the account, once per server."""
    flavor = Flavor(database.flavor.value)
    with database.connect() as connection, connection.cursor() as cursor:
        account = f"'{RESHARDER}'@'%'"
        cursor.execute(f"CREATE USER IF NOT EXISTS {account} IDENTIFIED BY '{RESHARDER_PASSWORD}'")
        cursor.execute(f"GRANT {', '.join(documented_grants(flavor))} ON *.* TO {account}")


def resharder_of(database: DatabaseFixture, shard: str) -> ReshardServer:
    """The server as the primary of a shard, with the account that reshards."""
    create_resharder(database)
    return ReshardServer(
        database.host,
        database.port,
        RESHARDER,
        RESHARDER_PASSWORD,
        shard=shard,
        flavor=Flavor(database.flavor.value),
    )
