"""MariaDB's numbers that run backwards: nothing is left out in silence, and there is a way past."""

import re

import pytest

from databases.sql import rows
from event_token.errors import UsageError
from producers.errors import NumbersRanBackwards
from producers.settings import ShardProducerSettings
from producers.skip.lost_transactions import skip_lost
from producers.skip.one_transaction import skip_transaction
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    RunningProducer,
    check_progress,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from tests.producers.skip.skipping import ids
from topics.records.skip_record import Skip
from topics.records.vevent import EventType

pytestmark = pytest.mark.full

REASON = "a dump with SET gtid_seq_no was loaded"


def insert(database: DatabaseFixture, name: str, *ids: int) -> None:
    """One transaction per row."""
    statements(database, *(f"INSERT INTO {name}.t VALUES ({i})" for i in ids))


def last_gtid(database: DatabaseFixture) -> tuple[str, int]:
    """The server's last GTID up to its number, and the number."""
    with database.connect() as connection:
        [(gtid,)] = rows(connection, "SELECT @@GLOBAL.gtid_binlog_pos")
    head, _, number = str(gtid).rpartition("-")
    return f"{head}-", int(number)


def insert_with_number(database: DatabaseFixture, name: str, number: int, row: int) -> None:
    """One row under a number that the session chooses."""
    statements(
        database,
        "SET GLOBAL gtid_strict_mode = 0",
        f"SET SESSION gtid_seq_no = {number}",
        f"INSERT INTO {name}.t VALUES ({row})",
        "SET GLOBAL gtid_strict_mode = 1",
    )


def stopped(settings: ShardProducerSettings) -> tuple[BaseException, str]:
    """What a producer stops with, and the GTID of the skip that it names."""
    error = RunningProducer(settings).wait_error()
    found = re.search(rf"shardstream skip {settings.keyspace} - --gtid (\S+) --reason", str(error))
    assert found is not None, str(error)
    return error, found[1]


def skip_two(database: DatabaseFixture, name: str, settings: ShardProducerSettings) -> str:
    """Pass one row out of order, and the one behind it; return the GTIDs that were passed."""
    head, number = last_gtid(database)
    insert_with_number(database, name, number - 2, 100)
    insert(database, name, 101, 5)

    named = stopped(settings)[1]
    passed = f"{head}{number - 2},{head}{number + 1}"
    assert passed.startswith(f"{named},")
    assert skip_transaction(settings, named, REASON).gtids == passed
    with pytest.raises(UsageError, match="is already past"):
        skip_transaction(settings, named, REASON)
    return passed


def skip_five(database: DatabaseFixture, name: str, settings: ShardProducerSettings) -> str:
    """Pass what a restarted server counts on from; return the GTIDs that were passed."""
    head, number = last_gtid(database)
    insert_with_number(database, name, number - 3, 102)
    database.server.stop()
    database.server.start()
    insert(database, name, 103)
    error, named = stopped(settings)
    assert isinstance(error, NumbersRanBackwards)
    assert f"{named} to {head}{number - 2}, not above" in str(error)
    with pytest.raises(NumbersRanBackwards):
        skip_lost(settings, f"{head}{number}", REASON)
    with pytest.raises(NumbersRanBackwards, match="First commit one harmless transaction"):
        skip_transaction(settings, named, REASON)

    insert(database, name, 104, 105, 106, 6)  # the server sends 6 alone after the log's position
    error, again = stopped(settings)
    assert isinstance(error, NumbersRanBackwards)
    assert again == named
    passed = ",".join(f"{head}{number + i}" for i in (-3, -2, -1, 0, 1))
    assert skip_transaction(settings, named, REASON).gtids == passed
    return passed


def test_numbers_that_ran_backwards_are_passed_by_the_command_that_is_named(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """B3: SKIP names all that a position cannot tell from earlier ones, also after a restart."""
    database = start_mariadb()
    name = database.new_database()
    settings = settings_of(database, kafka, keyspace)
    statements(database, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    with producing(settings):
        insert(database, name, 1, 2, 3, 4)
        wait_caught_up(settings)

    first = skip_two(database, name, settings)
    with producing(settings):
        wait_caught_up(settings)
    second = skip_five(database, name, settings)
    with producing(settings):
        wait_caught_up(settings)

    log = read_log(settings)
    check_progress(log)
    found = [e for e in log.events if e.type in {EventType.ROW, EventType.SKIP}]
    seen = [e.after["id"] if e.after else "skip" for e in found]
    assert seen == [1, 2, 3, 4, "skip", 5, "skip", 6]
    assert [Skip.of(e).gtids for e in found if not e.after] == [first, second]


@pytest.mark.parametrize("has_number_above", [True, False])
def test_numbers_that_ran_backwards_are_found_where_the_place_of_the_last_is_not_known(
    *, has_number_above: bool, start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """B3: the server has another id by now, and the file that the numbers point to is another."""
    database = start_mariadb()
    name = database.new_database()
    settings = settings_of(database, kafka, keyspace)
    statements(database, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    with producing(settings):
        insert(database, name, 1, 2, 3)
        wait_caught_up(settings)
    head, number = last_gtid(database)
    insert_with_number(database, name, number - 2, 100)
    statements(database, "FLUSH BINARY LOGS", "SET GLOBAL server_id = 9199")
    if has_number_above:
        insert_with_number(database, name, number + 1, 101)

    error, named = stopped(settings)
    assert isinstance(error, NumbersRanBackwards)
    assert named == f"{head}{number - 2}"
    if not has_number_above:
        assert "First commit one harmless transaction" in str(error)
        insert_with_number(database, name, number + 1, 101)
    passed = f"{named},0-9199-{number + 1}"
    assert skip_transaction(settings, named, REASON).gtids == passed
    insert(database, name, 4)
    with producing(settings):
        wait_caught_up(settings)

    log = read_log(settings)
    check_progress(log)
    assert ids(log.events) == [1, 2, 3, "skip", 4]
