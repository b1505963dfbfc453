"""`shardstream skip --lost` on real servers: a failover lost what the log holds."""

import re
from dataclasses import replace

import pytest

from event_token import UsageError, parse_gtid_set
from producers.errors import ServerBehindLog
from producers.skip.lost_transactions import skip_lost
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import StartServer
from tests.producers.servers.replication import (
    REPLICA,
    executed,
    promote,
    start_pair,
    statements,
    wait_same,
)
from tests.producers.session.producing import (
    RunningProducer,
    check_progress,
    producing,
    read_log,
    server_of,
    settings_of,
    wait_caught_up,
)
from topics.records.skip_record import Skip, SkipKind
from topics.records.vevent import EventType

pytestmark = pytest.mark.full

REASON = "failover of 3 May: the old primary's disk is gone"


def test_log_goes_on_after_a_failover_that_lost_transactions(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """B3: the stop names the command; after it the new primary's rows follow, each one once."""
    primary, replica = start_pair(start_mysql)
    name = primary.new_database()
    on_primary = settings_of(primary, kafka, keyspace)
    both = replace(on_primary, servers=(server_of(primary), server_of(replica)))
    producer = RunningProducer(both)
    producer.wait_streaming()
    statements(primary, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    statements(primary, f"INSERT INTO {name}.t VALUES (0)")
    wait_same(replica, primary)
    statements(replica, f"STOP {REPLICA[replica.flavor]}")
    statements(primary, *(f"INSERT INTO {name}.t VALUES ({i})" for i in (1, 2)))
    wait_caught_up(on_primary)
    before = parse_gtid_set(executed(replica), both.flavor)
    promote(replica)
    statements(replica, *(f"INSERT INTO {name}.t VALUES ({i})" for i in (3, 4, 5)))
    primary.server.kill()
    error = producer.wait_error()

    assert isinstance(error, ServerBehindLog)
    found = re.search(rf"shardstream skip {keyspace} - --lost (\S+) --reason", str(error))
    assert found is not None, str(error)
    with pytest.raises(UsageError, match=re.escape(f"lacks {found[1]}; --lost takes exactly that")):
        skip_lost(both, str(before), REASON)
    report = skip_lost(both, found[1], REASON)
    with producing(both):
        wait_caught_up(settings_of(replica, kafka, keyspace))
    log = read_log(both)

    assert [event.seq for event in log.events] == list(range(1, len(log.events) + 1))
    check_progress(log)
    rows = [e for e in log.events if e.type in {EventType.ROW, EventType.SKIP}]
    assert [e.after["id"] if e.after else "skip" for e in rows] == [0, 1, 2, "skip", 3, 4, 5]
    assert report.position == str(before)
    skip = Skip.of(rows[3])
    assert (skip.kind, skip.reason) == (SkipKind.LOST, REASON)
    lost = [rows[1].gtid, rows[2].gtid]
    assert parse_gtid_set(",".join(lost), both.flavor) == parse_gtid_set(skip.gtids, both.flavor)
    with pytest.raises(UsageError, match="lacks nothing"):
        skip_lost(both, found[1], REASON)
