"""What is checked of each of the other servers; the modules of tests take it over."""

import re

import pymysql
import pytest

from databases.table_cursor import is_same_table, table_identity
from event_token import Flavor
from producers.copy.chunk import ChunkConnection
from tests.database_servers import DatabaseFixture
from tests.producers.copy.copied_rows import check_copied_rows
from tests.producers.decoder.capture import run_statements
from tests.producers.decoder.case_checks import check_case
from tests.producers.decoder.case_files import Case, cases_for
from tests.producers.decoder.random_changes import check_random_table
from tests.producers.own_servers import OwnServers
from tests.producers.session.producing import problems_of, server_of
from tests.spark_consumers.versioned_tables import check_present_rows


def test_server_is_of_its_version_and_suits(
    server: DatabaseFixture, request: pytest.FixtureRequest
) -> None:
    """The module speaks of the series that runs, and a producer finds nothing amiss with it."""
    series = request.module.VERSION
    assert series <= server.version < (*series[:2], series[2] + 100)
    found = problems_of(server_of(server), Flavor(server.flavor), accept_loss_at_server_crash=True)
    assert found == []


def test_a_table_is_told_from_others_of_its_name(server: DatabaseFixture) -> None:
    """Whatever its name, it has an id, which stays with an index and goes with another table."""
    name, table = server.new_database(), "a-b \u00fc$"
    place = f"{name}.`{table}`"
    run_statements(server, name, (f"CREATE TABLE {place} (k INT PRIMARY KEY, v INT)",))
    chunks = ChunkConnection(server_of(server))

    def identity() -> tuple[str, ...]:
        return table_identity(chunks.connection, Flavor(server.flavor), name, table)

    first = identity()
    run_statements(server, name, (f"ALTER TABLE {place} ADD INDEX (v)",))
    second = identity()
    swap = f"RENAME TABLE {place} TO {name}.old, {name}.other TO {place}"
    run_statements(server, name, (f"CREATE TABLE {name}.other LIKE {place}", swap))
    third = identity()
    chunks.close()

    assert re.fullmatch(r"=\d+", first[1])
    assert second == first
    assert not is_same_table(first, third)


def test_case(case: Case, server_of_case: DatabaseFixture) -> None:
    """A case gives here what it expects."""
    check_case(case, server_of_case)


def test_copied_rows_are_the_logged_ones(copied_case: Case, own_servers: OwnServers) -> None:
    """Copied rows are those that the log has, for every type that there is here."""
    flavor, options = copied_case.flavor, copied_case.server_options
    check_copied_rows(copied_case, own_servers.with_options(flavor, options))


def test_log_adds_up_to_what_a_select_shows(server: DatabaseFixture, seed: int) -> None:
    """Random tables of the types that there are here."""
    check_random_table(server, seed)


def test_present_rows_are_what_a_select_shows(server: DatabaseFixture) -> None:
    """Of system-versioned tables a replay of the log has the rows without their history."""
    check_present_rows(server)


def test_server_refuses_what_is_left_out(server: DatabaseFixture) -> None:
    """A case for later versions has a statement or an option that this one does not know."""
    for case in cases_for(server.flavor, server.version):
        if case.since <= server.version:
            continue
        options = {option.removeprefix("--").partition("=")[0] for option in case.server_options}
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW GLOBAL VARIABLES")
            known = {row[0] for row in cursor.fetchall()}
        if options <= {name.replace("_", "-") for name in known}:
            with pytest.raises(pymysql.Error):
                run_statements(server, server.new_database(), case.statements)
            roll_back_prepared(server)


def roll_back_prepared(server: DatabaseFixture) -> None:
    """End what a case broke off behind XA PREPARE, or the next one finds its name taken."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("XA RECOVER")
        for *_, name in cursor.fetchall():
            cursor.execute(f"XA ROLLBACK '{name}'")
