"""What is read of the ends of progress topics, on a real broker."""

import time
from dataclasses import replace

import pytest

from tests.topics.shard_writer import START_US, TIMEOUT_S, Writers, set_topic
from tests.topics.splits import SPLIT
from tests.topics.subscribing import taken
from tests.waiting import wait_for
from topics import named_readers
from topics.fleet.look import FleetWatch
from topics.fleet.view import ShardCondition, StoppedWrites
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.provisioning import provision_readers, retentions_ms
from topics.keyspace.topology import (
    ReshardEntry,
    ShardEntry,
    ShardState,
    Topology,
    update_topology,
)
from topics.names import ShardTopics
from topics.progress.record import MarkKind
from topics.schemas import TopicSchemaIds
from topics.start.start_forms import Start
from topics.stream.subscriber import StreamSubscriber

SECOND_US = 1_000_000


def test_a_producer_that_works_off_a_backlog_is_late_not_silent(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """An old watermark that was written just now is progress, with a rate by the time it took."""
    [writer] = writers("-")
    now_us = time.time_ns() // 1_000
    for ago_us in (2 * SECOND_US, 0):
        events = writer.rows([(1 if ago_us else 2, 10)])  # committed years ago
        writer.producer.begin_transaction()
        progress = writer.progress(events, writer.produce(events))
        writer.produce_progress(replace(progress, server_time_us=now_us - ago_us))
        writer.producer.commit_transaction(TIMEOUT_S)
    writer.wait_committed()

    with FleetWatch(config, TopicSchemaIds(config)) as watch:
        view = watch.look(keyspace)

    [shard] = view.shards
    assert shard.condition is ShardCondition.SERVING
    assert shard.records_per_s == 5
    assert view.held_by == ("-",)
    assert view.reason.startswith("is still reading")


def retentions(watch: FleetWatch, keyspace: str) -> list[int | None]:
    """The retention of each log, as a watch finds it."""
    return [shard.retention_ms for shard in watch.look(keyspace).shards]


def test_the_retention_is_that_of_the_logs_now(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """It is asked of Kafka, once a minute; a log that is kept for ever has none."""
    for writer in writers("-80", "80-"):
        writer.heartbeat(SECOND_US)
        writer.wait_committed()
    with FleetWatch(config, TopicSchemaIds(config)) as watch:
        assert retentions(watch, keyspace) == [None, None]
        set_topic(config, ShardTopics(keyspace, "-80").log, "retention.ms", "604800000")
        assert retentions(watch, keyspace) == [None, None]

    def is_found() -> bool:
        with FleetWatch(config, TopicSchemaIds(config)) as watch:
            return retentions(watch, keyspace) == [604_800_000, None]

    wait_for("a new watch finds it", is_found)


def test_a_retention_that_kafka_refuses_to_tell_is_left_out(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """Whatever the error is: the other logs have theirs, and whoever looks goes on."""
    writers("-")
    log = ShardTopics(keyspace, "-").log
    set_topic(config, log, "retention.ms", "604800000")
    admin = open_admin(config)

    wait_for(
        "the log has its retention",
        lambda: retentions_ms(admin, config, ["no topic's name", log]) == {log: 604_800_000},
    )


@pytest.mark.full
def test_named_readers_are_looked_at_again_and_again(
    config: ClientConfig, keyspace: str, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look without the topic finds none; later ones find what was reported since."""
    monkeypatch.setattr(named_readers, "CLOSE_S_MAX", TIMEOUT_S)
    [writer] = writers("-")
    writer.commit((0, 3))
    writer.heartbeat(SECOND_US)
    lags = []
    with FleetWatch(config, TopicSchemaIds(config)) as watch:
        assert watch.look(keyspace).readers == ()
        provision_readers(config, keyspace)
        start: Start = "earliest"
        for _ in range(2):
            with StreamSubscriber(
                keyspace, start=start, config=config, name="billing", idle_timeout_s=0.5
            ) as stream:
                taken(stream, 3)
                assert list(stream) == []
            assert stream.position is not None
            start = stream.position
            writer.commit((2 * SECOND_US, 3))
            writer.heartbeat(3 * SECOND_US)
            writer.wait_committed()
            [reader] = watch.look(keyspace).readers
            lags.append(reader.events_behind)
        assert reader.frontier_us == START_US + 3 * SECOND_US
        assert lags == [{"-": 3}, {"-": 3}]


def test_a_source_that_has_ended_has_its_writes_stopped(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """END of a running reshard is seen in the log, until CANCEL follows it."""
    _, source = writers("-80", "80-")
    source.commit((0, 2))
    running = ReshardEntry(SPLIT.reshard_id, SPLIT.sources, SPLIT.targets, "RUNNING")
    update_topology(config, keyspace, lambda before: with_reshard(before, running))
    stopped = []
    with FleetWatch(config, TopicSchemaIds(config)) as watch:
        stopped.append(watch.look(keyspace).stopped)
        for at_us, kind in ((1_000, MarkKind.END), (2_000, MarkKind.CANCEL)):
            source.mark(at_us, kind, SPLIT)
            source.wait_committed()
            stopped.append(watch.look(keyspace).stopped)

    since = StoppedWrites(SPLIT.reshard_id, ("80-",), START_US + 1_000)
    assert stopped == [(), (since,), ()]


def with_reshard(before: Topology | None, entry: ReshardEntry) -> Topology:
    """The topology with a reshard whose targets are being filled."""
    assert before is not None
    targets = tuple(ShardEntry(name, ShardState.TARGET) for name in entry.targets)
    return replace(before, shards=(*before.shards, *targets), reshards=(entry,))
