"""A backlog whose rows are all excluded by filters: it is committed, and never too long."""

from dataclasses import replace

import pytest

from producers import publisher
from producers.filters.rules import FilterSettings, TablePattern
from producers.session import committer
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import executed
from tests.producers.session.producing import producing, read_log, settings_of, wait_caught_up

pytestmark = pytest.mark.full

TRANSACTIONS = 1_500
ROWS = 20_000  # of one transaction: more bytes than are read at once


def test_backlog_of_excluded_rows_is_committed_as_it_passes(
    mysql_a: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B4: position and head advance while no row is logged, and no transaction is too long."""
    name = mysql_a.new_database()
    rules = FilterSettings(exclude=(TablePattern(f"{name}.t"),))
    settings = settings_of(mysql_a, kafka, keyspace, filters=rules)
    with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, pad TEXT)")
        start = executed(mysql_a)  # behind the statement, which is logged
        for _ in range(TRANSACTIONS):
            cursor.execute("INSERT INTO t (pad) VALUES (REPEAT('x', 5000))")
        values = ", ".join(["(REPEAT('x', 100))"] * ROWS)
        cursor.execute(f"INSERT INTO t (pad) VALUES {values}")
    # Every commit that is possible is due, and a transaction with a record is at once too old.
    monkeypatch.setattr(committer, "EMPTY_COMMIT_S", 0.0)
    monkeypatch.setattr(publisher, "TIMEOUT_SHARE", 1e-6)

    with producing(replace(settings, start=f"gtid:{start}")):
        wait_caught_up(settings)
    log = read_log(settings)

    assert log.events == []
    passed = {p.position for p in log.progress if p.position not in {start, executed(mysql_a)}}
    assert len(passed) > 10
    heads = [p.head_us for p in log.progress]
    assert heads == sorted(heads)
