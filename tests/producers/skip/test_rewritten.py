"""`shardstream skip --lost` on a server that gave the GTIDs of lost transactions to others."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from event_token import UsageError
from producers.errors import HistoryRewritten, ServerBehindLog
from producers.settings import ShardProducerSettings
from producers.skip.lost_transactions import skip_lost
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.servers.power_cut import clock_s, losing_what_follows, produce_and_stop
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    RunningProducer,
    check_progress,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from tests.waiting import wait_for
from topics.records.skip_record import Skip, SkipKind
from topics.records.vevent import EventType

pytestmark = pytest.mark.full

REASON = "power cut in rack 7"


@pytest.mark.parametrize(
    ("start_name", "written", "stop"),
    [("start_mariadb", 4, HistoryRewritten), ("start_mysql", 2, ServerBehindLog)],
)
def test_log_goes_on_after_its_gtids_were_given_to_others(
    *,
    start_name: str,
    written: int,
    stop: type[Exception],
    request: pytest.FixtureRequest,
    kafka: KafkaCluster,
    keyspace: str,
    tmp_path: Path,
) -> None:
    """A1, B3: all that were lost are named, also where the server has fewer by now.

    Rows 1 to 3 are lost, and the rows that have their GTIDs now are logged.
    """
    database: DatabaseFixture = request.getfixturevalue(start_name)()
    name = database.new_database()
    settings = settings_of(database, kafka, keyspace)
    statements(database, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    statements(database, f"INSERT INTO {name}.t VALUES (0)")
    start_log(settings)
    lose_three(database, settings, name, tmp_path)
    new = [10 + i for i in range(written)]
    statements(database, *(f"INSERT INTO {name}.t VALUES ({i})" for i in new))

    error = RunningProducer(settings).wait_error()
    assert isinstance(error, stop)
    found = re.search(rf"shardstream skip {keyspace} - --lost (\S+) --reason", str(error))
    assert found is not None, str(error)
    skip_named(settings, found[1])
    with producing(settings):
        wait_caught_up(settings)

    log = read_log(settings)
    check_progress(log)
    rows = [e for e in log.events if e.type in {EventType.ROW, EventType.SKIP}]
    assert [e.after["id"] if e.after else "skip" for e in rows] == [0, 1, 2, 3, "skip", *new]
    skip = Skip.of(rows[4])
    assert (skip.kind, skip.reason) == (SkipKind.LOST, REASON)
    assert "unverified" not in produce_and_stop(settings)


def start_log(settings: ShardProducerSettings) -> None:
    """Log everything from the server's first transaction on."""
    with producing(replace(settings, start="earliest")):
        wait_caught_up(settings)


def lose_three(
    database: DatabaseFixture, settings: ShardProducerSettings, name: str, folder: Path
) -> None:
    """Log three rows that the server loses; its clock has moved on by a second then."""
    with losing_what_follows(database, folder / "kept"):
        statements(database, *(f"INSERT INTO {name}.t VALUES ({i})" for i in (1, 2, 3)))
        produce_and_stop(settings)
        lost_s = clock_s(database)
    wait_for("another second begins", lambda: clock_s(database) > lost_s)


def skip_named(settings: ShardProducerSettings, named: str) -> None:
    """Skip what a message names; the refusal names the rest, if there is more."""
    if ":" in named:  # MariaDB's last GTID stands for those before it
        with pytest.raises(UsageError, match="it has other transactions under") as refusal:
            skip_lost(settings, named, REASON)
        exact = re.search(r"lacks (\S+); --lost takes exactly that", str(refusal.value))
        assert exact is not None, str(refusal.value)
        named = exact[1]
    skip_lost(settings, named, REASON)
