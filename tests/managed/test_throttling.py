"""Brokers that slow clients down, and that close connections as soon as they are idle."""

import random
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Consumer, Producer, ThrottleEvent, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public

from tests.database_servers import DatabaseFixture
from tests.managed.kafka_services import IDLE_MS, ManagedCluster, limit_rates
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    check_log,
    check_progress,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from tests.resharding.flow import reading
from tests.topics.shard_writer import provision
from tests.waiting import WAIT_S, wait_for
from topics.errors import RowsNotReadable
from topics.kafka.client import ClientConfig, open_admin
from topics.names import ShardTopics
from topics.reading.planner import ShardRange
from topics.stream.log_reader import ShardLogReader

pytestmark = pytest.mark.full

# Ten seconds of a quota may be taken at once. All is read twice, so both are exceeded.
BYTES_PER_S = 50_000
ROW_BYTES = 50_000
WITHOUT_ROWS_S = 1.0


def test_clients_that_are_throttled_or_cut_off_when_idle_lose_nothing(
    msk: ManagedCluster, mysql_a: DatabaseFixture, keyspace: str
) -> None:
    """A producer and a reader beyond their quotas wait; closed connections are opened again.

    Strangers of the same client id share the quotas, and see that they are exceeded. What is larger
    than ten seconds of a quota is never sent, and the error says so.
    """
    name = mysql_a.new_database()
    statements(mysql_a, f"CREATE TABLE {name}.t (id INT PRIMARY KEY, v MEDIUMBLOB)")
    direct = settings_of(mysql_a, msk, keyspace)
    limited = ClientConfig(
        {
            "bootstrap.servers": msk.proxied,
            "client.id": "limited",
            "batch.size": str(2 * ROW_BYTES),
            "fetch.message.max.bytes": str(2 * ROW_BYTES),
        }
    )
    starved = ClientConfig({"bootstrap.servers": msk.proxied, "client.id": "starved"})
    limit_rates(msk, "limited", BYTES_PER_S, BYTES_PER_S)
    limit_rates(msk, "starved", BYTES_PER_S, ROW_BYTES // 20)
    provision(direct.kafka, keyspace, ["-"])
    admin = open_admin(direct.kafka)
    admin.create_topics([NewTopic("stranger", 1, 1)])["stranger"].result(WAIT_S)
    throttled: dict[str, list[ThrottleEvent]] = {"writing": [], "reading": []}
    stranger: dict[str, Any] = {**limited}
    writer = Producer({**stranger, "throttle_cb": throttled["writing"].append})
    asker = Consumer(
        {**stranger, "throttle_cb": throttled["reading"].append, "group.id": "stranger"}
    )
    asker.assign([TopicPartition(ShardTopics(keyspace, "-").log, 0, OFFSET_END)])

    rows: list[tuple[int, bytes]] = []

    def are_throttled() -> bool:
        rows.append((len(rows), random.Random(len(rows)).randbytes(ROW_BYTES)))
        with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (%s, %s)", rows[-1])
        writer.produce("stranger", b"x")
        writer.flush(0.1)
        asker.poll(0.1)
        return all(any(e.throttle_time > 0 for e in seen) for seen in throttled.values())

    slow = replace(direct, kafka=limited, heartbeat_ms=IDLE_MS + 1_000)
    with producing(slow), reading(limited, keyspace) as reader:
        accepted = msk.proxy.accepted
        wait_for("connections are opened again", lambda: msk.proxy.accepted > accepted + 3)
        wait_for("both are throttled", are_throttled)
        asker.close()  # what it reads is of the reader's quota
        wait_caught_up(direct)
        reader.wait_for("the reader has all", lambda: len(reader.events) >= len(rows))
    log = read_log(direct)
    first, last = log.events[-len(rows)], log.events[-1]
    due = ShardRange("-", first.offset, last.offset + 1, first.seq, last.seq)
    with closing(ShardLogReader(starved, keyspace, "-", rows_wait_s=WITHOUT_ROWS_S)) as unanswered:

        def says_why() -> bool:
            with pytest.raises(RowsNotReadable) as raised:
                next(unanswered.read(due))
            return "Raise its consumer_byte_rate" in str(raised.value)

        wait_for("brokers throttle, as the error says", says_why)

    check_log(log)
    check_progress(log)
    assert [(e.after["id"], e.after["v"]) for e in log.events if e.after] == rows
    assert [e.seq for e in reader.events] == [e.seq for e in log.events][-len(rows) :]
