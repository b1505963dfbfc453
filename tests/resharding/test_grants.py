"""The privileges that the account of a reshard needs."""

from event_token import Flavor
from resharding.grants import NEEDED_TO_SWITCH
from resharding.server import open_session
from tests.database_servers import DatabaseFixture
from tests.resharding.accounts import FOR_TRIGGERS, documented_grants, resharder_of


def test_documented_grants_are_those_that_are_needed(database: DatabaseFixture) -> None:
    """B16: the page grants what commands check for, and what only triggers need besides."""
    flavor = Flavor(database.flavor.value)

    found = set(documented_grants(flavor))

    assert found == {*NEEDED_TO_SWITCH[flavor], FOR_TRIGGERS[flavor]}


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
