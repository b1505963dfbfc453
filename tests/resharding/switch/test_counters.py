"""AUTO_INCREMENT and sequences of a target, above all that its sources have used."""

import pytest

from event_token import Flavor
from event_token.errors import Halt
from resharding.servers import open_session
from resharding.switch.opening import (
    Numbers,
    counters_to_raise,
    raise_counters,
    sequence_statement,
)
from tests.database_servers import DatabaseFixture, StartServer
from tests.resharding.accounts import resharder_of
from tests.resharding.shards import fresh_schema

TABLE = "CREATE TABLE t (user_id INT, id INT AUTO_INCREMENT, PRIMARY KEY (user_id, id), KEY (id))"


@pytest.fixture(params=["mysql", "mariadb"])
def pair(
    real_servers: None, request: pytest.FixtureRequest
) -> tuple[DatabaseFixture, DatabaseFixture]:
    """A source and a target of each family in turn."""
    if request.param == "mysql":
        return request.getfixturevalue("mysql_a"), request.getfixturevalue("mysql_b")
    start: StartServer = request.getfixturevalue("start_mariadb")
    return request.getfixturevalue("mariadb_a"), start()


def test_a_target_goes_on_behind_what_its_sources_gave_out(
    pair: tuple[DatabaseFixture, DatabaseFixture],
) -> None:
    """A11: also where the rows are gone; a target that is further is left as it is."""
    schema = fresh_schema()
    flavor = Flavor(pair[0].flavor.value)
    for database in pair:
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {schema}")
            cursor.execute(f"USE {schema}")
            cursor.execute(TABLE)
            if flavor is Flavor.MARIADB:
                first = 2 if database is pair[1] else 1
                cursor.execute(f"CREATE SEQUENCE ids START WITH {first} INCREMENT BY 2 CACHE 4")
            cursor.execute("INSERT INTO t VALUES (1, 1)")
            if database is pair[0]:
                cursor.execute("INSERT INTO t (user_id) VALUES (1), (2), (3), (4), (5)")
                cursor.execute("DELETE FROM t WHERE id > 1")
                if flavor is Flavor.MARIADB:
                    cursor.execute("SELECT NEXTVAL(ids)")
    source, target = (open_session(resharder_of(database, "-")) for database in pair)
    with source, target:
        arguments = ([source], target, frozenset({schema}), flavor)
        raise_counters(target, counters_to_raise(*arguments))
        assert counters_to_raise(*arguments) == []
        assert counters_to_raise([target], source, *arguments[2:]) == [
            # What the target has been given is not given out by another one.
            f"SELECT SETVAL(`{schema}`.`ids`, 11, 0)"
            for _ in range(flavor is Flavor.MARIADB)
        ]
        with target.cursor() as cursor:
            cursor.execute(f"INSERT INTO {schema}.t (user_id) VALUES (9)")
            cursor.execute("SELECT LAST_INSERT_ID()")
            assert cursor.fetchall() == ((7,),)
            if flavor is Flavor.MARIADB:
                cursor.execute(f"SELECT NEXTVAL({schema}.ids)")
                assert cursor.fetchall() == ((10,),)
    for database in pair:
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {schema}")


def test_a_sequence_keeps_its_own_steps() -> None:
    """A11: of two shards that take turns each goes on with its own values; what ends is named."""
    here = Numbers(2, 1, 1000, 2, 2, cycles=False)
    given = [Numbers(7, 1, 1000, 1, 2, cycles=False), Numbers(11, 1, 1000, 1, 2, cycles=False)]
    down = Numbers(-1, -1000, -1, -1, -1, cycles=False)

    assert sequence_statement(("d", "s"), here, given) == ["SELECT SETVAL(`d`.`s`, 12, 0)"]
    assert sequence_statement(("d", "s"), here, [here]) == []
    assert sequence_statement(("d", "s"), here, []) == []
    lower = Numbers(-51, -1000, -1, -1, -1, cycles=False)
    assert sequence_statement(("d", "s"), down, [lower]) == ["SELECT SETVAL(`d`.`s`, -51, 0)"]
    assert sequence_statement(("d", "s"), lower, [down]) == []
    with pytest.raises(Halt, match=r"sequence d.s on the target ends at 10.*ALTER SEQUENCE"):
        sequence_statement(("d", "s"), Numbers(1, 1, 10, 1, 1, cycles=False), given)
