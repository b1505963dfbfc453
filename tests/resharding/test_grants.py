"""The privileges of the accounts, as docs/operations.md grants them and as they are needed."""

from pathlib import Path

from databases.connection import open_connection
from databases.grants import read_account
from event_token import Flavor
from producers.session.heads import PRIVILEGES
from resharding.servers import NEEDED_TO_SWITCH, open_session
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import server_of
from tests.repository import ROOT, python_files
from tests.resharding.accounts import (
    FOR_TRIGGERS,
    PRODUCER,
    documented_grants,
    documented_producer_grants,
    privileges_on_page,
    resharder_of,
)


def test_documented_grants_are_those_that_are_needed(database: DatabaseFixture) -> None:
    """B16: the page grants what commands check for, and what only triggers need besides."""
    flavor = Flavor(database.flavor.value)

    found = set(documented_grants(flavor))

    assert found == {*NEEDED_TO_SWITCH[flavor], FOR_TRIGGERS[flavor]}


# Where root is an operator or a server's owner, not the product.
ROOT_IS_NO_PRODUCT = {
    "tests/database_servers.py",
    "tests/producers/servers/backups.py",
    "tests/shardstream/demo/composed/test_traffic.py",
    "tests/shardstream/demo/test_demo_writes.py",
}


def test_no_test_runs_the_product_as_root() -> None:
    """Producers, copies, preflight and reshards are tested with the documented accounts alone."""
    rooted = {
        path.relative_to(ROOT).as_posix()
        for path in python_files("tests")
        if "root_user" in path.read_text("utf-8")
    }

    assert rooted - {Path(__file__).relative_to(ROOT).as_posix()} == ROOT_IS_NO_PRODUCT


def test_producers_under_test_have_the_documented_grants(database: DatabaseFixture) -> None:
    """Every producer of the tests and of `shardstream local` runs with what the page grants."""
    flavor = Flavor(database.flavor.value)
    server = server_of(database)

    with open_connection(server) as connection:
        account = read_account(connection)

    assert account.name == f"'{database.user}'@'{database.host}'"
    assert account.privileges == set(documented_producer_grants(flavor))
    assert set(privileges_on_page(PRODUCER, "_shardstream.*")) == set(PRIVILEGES) - {"SELECT"}


def test_tables_with_foreign_keys_can_be_created(database: DatabaseFixture) -> None:
    """The documented grants include what a foreign key needs."""
    schema = database.new_database()
    with open_session(resharder_of(database, "-")) as session, session.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {schema}.users (id INT PRIMARY KEY)")
        cursor.execute(
            f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, user_id INT, "
            f"FOREIGN KEY (user_id) REFERENCES {schema}.users (id))"
        )
        cursor.execute(f"DROP DATABASE {schema}")
