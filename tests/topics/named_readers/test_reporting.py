"""A named reader's position on Kafka: its record, its group's offsets, and what goes wrong."""

import logging
from dataclasses import replace
from itertools import islice

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions

from event_token import KeyRange, StreamPosition
from event_token.errors import UsageError
from tests.topics.named_readers.reports import report, write_report
from tests.topics.shard_writer import TIMEOUT_S, Writers
from tests.topics.splits import FAR_US, split
from tests.topics.subscribing import taken
from tests.waiting import wait_for
from topics import named_readers
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.provisioning import provision_readers
from topics.named_readers import (
    NamedReader,
    ReaderReporter,
    ReadersFeed,
    forget_appliers,
    forget_reader,
    read_readers,
)
from topics.names import ApplierName
from topics.stream.subscriber import StreamSubscriber


def group_offsets(config: ClientConfig, keyspace: str, name: str) -> dict[str, int]:
    """By log, the offset that tools which show consumer lag find."""
    group = f"shardstream.{keyspace}.{name}"
    admin = open_admin(config)  # which must live until the answer is there
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(TIMEOUT_S).topic_partitions
    return {part.topic: part.offset for part in found}


def offsets(keyspace: str, position: StreamPosition) -> dict[str, int]:
    """By log, the next offset of a position."""
    return {f"{keyspace}.{shard}": at.offset for shard, at in position.shards.items()}


def one_reader(config: ClientConfig, keyspace: str) -> NamedReader:
    """The only reader that has reported."""
    [reader] = read_readers(config, keyspace)
    return reader


@pytest.mark.full
def test_a_named_reader_says_where_it_is(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """A restart at the position under the name reads exactly the rest; lag tools show it too."""
    provision_readers(config, keyspace)
    left, right = writers("-80", "80-")
    left.commit((0, 3), (30_000, 2))
    right.commit((10_000, 4))
    for writer in (left, right):
        writer.heartbeat(FAR_US)

    with StreamSubscriber(
        keyspace, start="earliest", config=config, name="billing", idle_timeout_s=1
    ) as stream:
        assert len(taken(stream, 9)) == 9
        assert list(stream) == []
        end = stream.position

    reader = one_reader(config, keyspace)
    assert end is not None
    assert reader.last.position == end
    assert reader.others == ()
    assert (reader.last.name, str(reader.last.key_range), reader.last.failed) == ("billing", "-", 0)
    assert reader.last.host
    assert reader.last.version
    assert group_offsets(config, keyspace, "billing") == offsets(keyspace, end)
    right.commit((FAR_US, 1))
    for writer in (left, right):
        writer.heartbeat(2 * FAR_US)
    with StreamSubscriber(keyspace, start=reader.last.position, config=config) as rest:
        assert [event.seq for event in islice(rest, 1)] == [5]
    assert stream.reports is not None
    assert stream.reports.failed == 0
    assert rest.reports is None


def test_what_the_caller_still_handles_is_not_reported(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """Whoever asks for more has handled what it got; the last event may be lost with the caller."""
    provision_readers(config, keyspace)
    [writer] = writers("-")
    writer.commit((0, 3))
    writer.heartbeat(FAR_US)

    with StreamSubscriber(keyspace, start="earliest", config=config, name="billing") as stream:
        assert next(stream).seq == 1
        assert next(stream).seq == 2

    assert one_reader(config, keyspace).last.position.shards["-"].seq == 1


def test_a_slow_caller_is_followed_between_reads(
    config: ClientConfig, keyspace: str, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that were fetched together are reported as the caller gets through them."""
    monkeypatch.setattr(named_readers, "REPORT_S", 0.0)
    provision_readers(config, keyspace)
    [writer] = writers("-")
    writer.commit((0, 200))  # fewer than one read makes ready
    writer.heartbeat(FAR_US)

    with StreamSubscriber(keyspace, start="earliest", config=config, name="billing") as stream:

        def is_reported() -> bool:
            event = next(stream)
            found = read_readers(config, keyspace)
            reported = found[0].last.position.shards["-"].seq if found else 0
            assert reported < event.seq
            return reported > 0

        wait_for("it is reported", is_reported)


@pytest.mark.full
def test_a_group_has_the_shards_of_its_reader(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """After a hop no source is left in the group: it would look like a lag that never ends."""
    provision_readers(config, keyspace)
    _, expected = split(writers, targets)

    with StreamSubscriber(keyspace, start="earliest", config=config, name="billing") as stream:
        taken(stream, 2)
    assert f"{keyspace}.80-" in group_offsets(config, keyspace, "billing")
    with StreamSubscriber(
        keyspace, start="earliest", config=config, name="billing", idle_timeout_s=0.5
    ) as stream:
        taken(stream, len(expected))
        list(stream)

    reader = one_reader(config, keyspace).last
    assert reader.position.shards.keys() == {"-80", "80-c0", "c0-"}
    assert group_offsets(config, keyspace, "billing") == offsets(keyspace, reader.position)


def test_two_readers_with_one_name_are_shown_and_both_read_on(
    config: ClientConfig, keyspace: str, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is stopped; reports that alternate tell that there are two."""
    monkeypatch.setattr(named_readers, "REPORT_S", 0.1)
    provision_readers(config, keyspace)
    [writer] = writers("-")
    writer.commit((0, 2))
    writer.heartbeat(FAR_US)

    def subscriber() -> StreamSubscriber:
        return StreamSubscriber(
            keyspace, start="earliest", config=config, name="billing", idle_timeout_s=0.2
        )

    with subscriber() as one, subscriber() as other:
        assert [e.seq for e in taken(one, 2)] == [e.seq for e in taken(other, 2)] == [1, 2]

        def both_are_shown() -> bool:
            list(one)
            list(other)
            return [len(each.others) for each in read_readers(config, keyspace)] == [1]

        wait_for("both are shown", both_are_shown)


@pytest.mark.full
def test_a_missing_topic_stops_nobody(
    config: ClientConfig, keyspace: str, writers: Writers, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nothing can be reported, everything is read, failures are counted, and said once."""
    [writer] = writers("-")
    writer.commit((0, 3))
    writer.heartbeat(FAR_US)

    with (
        caplog.at_level(logging.WARNING, "shardstream.readers"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(named_readers, "REPORT_S", 0.1)
        patch.setattr(named_readers, "UNKNOWN_S_MAX", 0.5)
        with StreamSubscriber(
            keyspace, start="earliest", config=config, name="billing", idle_timeout_s=0.5
        ) as stream:
            assert [event.seq for event in taken(stream, 3)] == [1, 2, 3]

            def has_failed_twice() -> bool:
                list(stream)
                return stream.reports is not None and stream.reports.failed > 1

            wait_for("it has failed twice", has_failed_twice)

    told = [r.getMessage() for r in caplog.records if r.name == "shardstream.readers"]
    # What a slow broker does to the group's offsets is another matter.
    [said] = [text for text in told if f"{keyspace}.readers" in text]
    assert "reader billing" in said
    assert "Producers create it" in said
    assert stream.reports is not None
    assert stream.reports.written == 0
    assert read_readers(config, keyspace) == ()


def test_without_brokers_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that is not delivered in time counts as failed; noting positions never raises."""
    monkeypatch.setattr(named_readers, "REPORT_S", 0.0)
    monkeypatch.setattr(named_readers, "DELIVERY_S_MAX", 0.2)
    monkeypatch.setattr(named_readers, "CLOSE_S_MAX", 0.1)
    nobody = ClientConfig({"bootstrap.servers": "127.0.0.1:1"})
    reports = ReaderReporter(nobody, "commerce", "billing", KeyRange.parse("-"))

    def has_failed() -> bool:
        reports.note(lambda: report().position)
        return reports.reports.failed > 0

    wait_for("it has failed", has_failed)
    reports.close()

    assert reports.reports.written == 0
    assert "commerce.readers" in reports.reports.error


def test_a_reader_that_is_gone_is_forgotten(
    config: ClientConfig, keyspace: str, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running reader is not, for it would report again; an unknown one is named."""
    monkeypatch.setattr(named_readers, "RUNNING_S", TIMEOUT_S)
    provision_readers(config, keyspace)
    [writer] = writers("-")
    writer.heartbeat(FAR_US)
    with StreamSubscriber(
        keyspace, start="earliest", config=config, name="billing", idle_timeout_s=0.2
    ) as stream:
        assert list(stream) == []
    last = one_reader(config, keyspace).last

    with pytest.raises(UsageError, match=r"reader billing reported .* so it still runs"):
        forget_reader(config, keyspace, "billing")
    with pytest.raises(UsageError, match=r"no reader 'other' .*billing"):
        forget_reader(config, keyspace, "other")

    assert group_offsets(config, keyspace, "billing")
    write_report(config, keyspace, replace(last, at_us=last.at_us - 2 * round(TIMEOUT_S * 1e6)))
    forget_reader(config, keyspace, "billing")
    assert read_readers(config, keyspace) == ()
    assert group_offsets(config, keyspace, "billing") == {}


@pytest.mark.full
def test_appliers_of_reshards_that_are_over_are_forgotten(
    config: ClientConfig, keyspace: str
) -> None:
    """Those under way stay, and so do readers; before a producer has made the topic is nothing."""
    forget_appliers(config, keyspace, ())
    provision_readers(config, keyspace)
    over, under_way = (ApplierName(each, "80-c0") for each in ("first", "second"))
    for name in (str(over), str(under_way), "billing"):
        write_report(config, keyspace, report(name))

    forget_appliers(config, keyspace, {under_way.reshard_id})

    left = [reader.last.name for reader in ReadersFeed(config, keyspace).look()]
    assert left == sorted([str(under_way), "billing"])
