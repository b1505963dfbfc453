from collections.abc import Iterator

import pytest
from confluent_kafka.admin import NewPartitions, ResourceType  # type: ignore[attr-defined]  # not in __all__

from event_token.errors import Halt, Retry, UsageError
from shardstream.local.kafka_cluster import KafkaCluster
from sinks.resume import PlannedBatch
from sinks.table_topics import transaction
from sinks.table_topics.batch_writer import Message, Output, write_batch
from tests.sinks.table_topics.brokers.altered import REQUEST_S_MAX, altered
from tests.sinks.table_topics.topic_tasks import (
    PARTITIONS,
    TopicTask,
    committed,
    position,
)
from tests.waiting import wait_for
from topics.kafka.client import open_admin

# More than is sent before the first refusal is known.
ROWS = 20_000


def test_a_row_that_is_too_large_for_its_topic_stops_by_name(task: TopicTask) -> None:
    """The message names topic, key and setting; once that is raised, no row is missing."""
    task.write(position(a=0), position(a=2), is_first=True)
    too_small = {"max.message.bytes": "1000"}

    with (
        altered(task.config, ResourceType.TOPIC, task.topic, too_small),
        pytest.raises(Halt, match=rf"{task.topic}, key b'a', of \d+ bytes, .* allows 1000\. Raise"),
    ):
        task.write(position(a=2), position(a=ROWS))
    task.write(position(a=2), position(a=ROWS))

    assert committed(task.config, task.topic) == {"a": list(range(1, ROWS + 1))}


def test_partitions_that_are_added_under_a_query_stop_it(task: TopicTask) -> None:
    """Nothing is written to a topic in which keys would change their place."""
    task.write(position(a=0), position(a=2), is_first=True)
    more = PARTITIONS + 1
    admin = open_admin(task.config)
    added = admin.create_partitions([NewPartitions(task.topic, more)])
    added[task.topic].result(REQUEST_S_MAX)

    def has_more() -> bool:
        known = admin.list_topics(task.topic, REQUEST_S_MAX).topics[task.topic]
        return len(known.partitions) == more

    wait_for("it has more", has_more)

    with pytest.raises(UsageError, match=rf"{task.topic} has {more} partitions, not {PARTITIONS}"):
        task.write(position(a=2), position(a=5, b=3))

    assert committed(task.config, task.topic) == {"a": [1, 2]}


@pytest.mark.full
def test_a_broker_that_goes_away_in_a_batch_costs_no_row(
    task: TopicTask, kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is gone the batch says so and is run again; afterwards each row is there once."""
    task.write(position(a=0), position(a=2), is_first=True)
    [broker] = kafka.brokers
    monkeypatch.setattr(transaction, "TRANSACTION_S_MAX", 2.0)

    def messages() -> Iterator[Message]:
        for seq in (3, 4):
            yield Message(task.topic, b"a", str(seq).encode(), [])
        broker.kill()

    with pytest.raises(Retry, match=r"did not store the rows|storing a record"):
        write_batch(
            task.identity,
            PlannedBatch("query", 1, position(a=2), position(a=4)),
            lambda _plan, moves: Output(messages(), lambda: moves),
        )
    broker.start()
    monkeypatch.undo()
    task.write(position(a=2), position(a=4))

    assert committed(task.config, task.topic) == {"a": [1, 2, 3, 4]}
