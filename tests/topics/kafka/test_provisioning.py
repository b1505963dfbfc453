import json
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
)

from event_token.errors import UsageError
from shardstream.local.kafka_cluster import KafkaCluster
from tests.topics.schemas.writing import TIMEOUT_S, make_topic, topic_setting
from topics.errors import WrongTopic
from topics.kafka.client import ClientConfig, Deadline, open_admin, open_producer
from topics.kafka.partition_reader import read_tail
from topics.kafka.provisioning import (
    broker_transaction_timeout_ms,
    provision_keyspace,
    provision_schemas_topic,
    provision_shard,
    topic_warnings,
    wrong_topics,
)
from topics.kafka.topic_settings import (
    FOREVER_MS,
    RECORD_BYTES_MIN,
    SEGMENT_MS,
    FoundTopic,
    TopicSettings,
    costs_of,
    log_rules,
    problems_of,
    progress_rules,
)
from topics.names import ShardTopics, topology_topic

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def shard(keyspace: str) -> ShardTopics:
    """A shard that has no topics yet."""
    return ShardTopics(keyspace, "-80")


def existing(config: ClientConfig) -> set[str]:
    """The topics that exist."""
    return set(open_admin(config).list_topics(timeout=TIMEOUT_S).topics)


def test_a_shard_gets_its_topics_and_keeps_them(config: ClientConfig, shard: ShardTopics) -> None:
    """All three topics exist when the call returns, and a second call finds no problem."""
    provision_shard(config, shard)
    provision_shard(config, shard)
    provision_keyspace(config, shard.keyspace)
    provision_schemas_topic(config)

    assert {shard.log, shard.progress, shard.copy} <= existing(config)
    assert read_tail(config, shard.log).last is None
    assert wrong_topics(config, [shard]) == []


def test_records_of_any_time_are_taken(config: ClientConfig, shard: ShardTopics) -> None:
    """A server's clock far ahead of the broker's, and changes of long ago, reach the log."""
    provision_shard(config, shard)
    producer = open_producer(config)
    failures = []
    for timestamp_ms in (1, 4_102_444_800_000):  # 1970 and 2100
        for topic in (shard.log, shard.progress, shard.copy):
            producer.produce(
                topic,
                b"x",
                b"k",
                0,
                timestamp=timestamp_ms,
                on_delivery=lambda error, _message: failures.append(error) if error else None,
            )

    assert producer.flush(TIMEOUT_S) == 0
    assert failures == []


def test_all_wrong_settings_are_listed_and_nothing_is_made(
    config: ClientConfig,
    shard: ShardTopics,
) -> None:
    """A compacted log and an uncompacted progress topic are reported together, with their fixes."""
    make_topic(config, shard.log, {"cleanup.policy": "compact", "max.message.bytes": "1000000"})
    make_topic(config, shard.progress, {"message.timestamp.type": "LogAppendTime"})

    with pytest.raises(WrongTopic) as caught:
        provision_shard(config, shard)

    text = str(caught.value)
    for topic, setting in (
        (shard.log, "cleanup.policy=delete"),
        (shard.log, "max.message.bytes="),
        (shard.progress, "cleanup.policy=compact"),
        (shard.progress, f"min.compaction.lag.ms={14 * DAY_MS}"),  # the log keeps 7 days
        (shard.progress, "message.timestamp.type=CreateTime"),
    ):
        assert f"--entity-name {topic} --add-config {setting}" in text
    assert f"max.message.bytes is 1000000, must be at least {RECORD_BYTES_MIN}: " in text
    assert len(caught.value.problems) >= 5
    assert wrong_topics(config, [shard]) == list(caught.value.problems)
    assert shard.copy not in existing(config)


def test_partitions_that_were_added_are_not_used(config: ClientConfig, shard: ShardTopics) -> None:
    """While they are empty the log goes on with a warning; others' records there stop it by name.

    The command that is named removes them.
    """
    make_topic(config, shard.log, {"max.message.bytes": str(RECORD_BYTES_MIN)}, partitions=3)
    provision_shard(config, shard)
    [warning] = [w for w in topic_warnings(config, [shard]) if "partitions" in w]
    producer = open_producer(config)
    producer.produce(shard.log, b"x", b"k", 2)
    assert producer.flush(TIMEOUT_S) == 0

    with pytest.raises(WrongTopic, match="partition 2 has records") as caught:
        provision_shard(config, shard)

    assert warning.startswith(f"{shard.log}: has 3 partitions: all but the first stay empty")
    [problem] = caught.value.problems
    [removed] = json.loads(problem[problem.index("{") : problem.rindex("}") + 1])["partitions"]
    place = TopicPartition(removed["topic"], removed["partition"], removed["offset"])
    admin = open_admin(config)
    admin.delete_records([place])[place].result(TIMEOUT_S)
    provision_shard(config, shard)


def test_a_refused_topic_leaves_nothing_behind(config: ClientConfig, shard: ShardTopics) -> None:
    """More replicas than brokers is an error before any topic is created."""
    with pytest.raises(UsageError, match="INVALID_REPLICATION_FACTOR"):
        provision_shard(config, shard, TopicSettings(replication_factor=9))

    assert not {shard.log, shard.progress, shard.copy} & existing(config)


def test_three_replicas_outlive_a_broker(kafka3: KafkaCluster, shard: ShardTopics) -> None:
    """With three brokers a commit is on two disks, and topics without that are refused."""
    config = ClientConfig({"bootstrap.servers": kafka3.bootstrap_servers})
    chosen = TopicSettings(replication_factor=3)
    provision_shard(config, shard, chosen)
    assert wrong_topics(config, [shard], chosen) == []
    assert topic_warnings(config, [shard], chosen) == []

    other = ShardTopics(shard.keyspace, "80-")
    settings = {**log_rules(other, chosen).settings(), "min.insync.replicas": "1"}
    make_topic(config, other.log, settings, replicas=3)

    # Brokers hear of a new topic one after the other.
    deadline = Deadline(TIMEOUT_S)
    while not (problems := wrong_topics(config, [other], chosen)):
        assert not deadline.passed
    assert len(problems) == 1
    assert "min.insync.replicas is 1, must be at least 2" in problems[0]


def test_the_brokers_default_of_three_replicas(kafka3: KafkaCluster, shard: ShardTopics) -> None:
    """A4: a commit is on two disks if the topic has three replicas, whatever the settings say."""
    config = ClientConfig({"bootstrap.servers": kafka3.bootstrap_servers})
    provision_shard(config, shard)  # with the brokers' default, which is 3 here
    for topic in (shard.log, shard.progress, shard.copy):
        assert topic_setting(config, topic, "min.insync.replicas") == "2"
    assert wrong_topics(config, [shard]) == []

    other = ShardTopics(shard.keyspace, "80-")
    settings = {**log_rules(other, TopicSettings()).settings(), "min.insync.replicas": "1"}
    make_topic(config, other.log, settings, replicas=3)

    with pytest.raises(WrongTopic, match=r"min\.insync\.replicas is 1, must be at least 2"):
        provision_shard(config, other)


def test_a_single_replica_is_warned_of(config: ClientConfig, shard: ShardTopics) -> None:
    """A4: with one broker nothing is refused, but the operator is told, before and after."""
    before = topic_warnings(config, [shard])
    provision_shard(config, shard)

    [warning] = topic_warnings(config, [shard])

    assert [warning] == before
    assert warning.startswith(f"{shard.log}: it has one replica")
    assert wrong_topics(config, [shard]) == []


def test_progress_outlives_the_log_as_it_is(config: ClientConfig, shard: ShardTopics) -> None:
    """The progress topic follows the log's retention, and is refused if it is shorter."""
    short = TopicSettings(retention_ms=DAY_MS)
    provision_shard(config, shard, short)
    assert wrong_topics(config, [shard], short) == []

    longer = ShardTopics(shard.keyspace, "80-")
    make_topic(config, longer.log, {**log_rules(longer, TopicSettings()).settings()})
    log_age_ms = DAY_MS + SEGMENT_MS
    make_topic(config, longer.progress, progress_rules(longer, log_age_ms).settings())

    [problem] = wrong_topics(config, [longer], short)
    assert f"min.compaction.lag.ms is {log_age_ms}, must be at least {FOREVER_MS}" in problem


def test_the_topology_topic_is_checked(config: ClientConfig, keyspace: str) -> None:
    """A topology that time would delete is refused."""
    make_topic(config, topology_topic(keyspace))

    with pytest.raises(WrongTopic, match=r"cleanup\.policy is delete, must be compact"):
        provision_keyspace(config, keyspace)


def test_the_longest_transaction_is_the_brokers(config: ClientConfig) -> None:
    """The brokers' transaction timeout is read from them, not assumed."""
    assert broker_transaction_timeout_ms(config) >= 60_000


@pytest.mark.parametrize(
    ("name", "value", "is_wrong"),
    [
        ("max.message.bytes", "1048588", True),
        ("max.message.bytes", "1048589", False),
        ("max.message.bytes", str(200 * 1024 * 1024), False),
        ("message.timestamp.after.max.ms", "3599999", True),
        ("message.timestamp.after.max.ms", "3600000", False),
        ("message.timestamp.before.max.ms", "3600000", True),
        ("message.timestamp.type", "LogAppendTime", True),
        ("cleanup.policy", "compact,delete", True),
        ("unclean.leader.election.enable", "true", True),
        ("retention.ms", "604800000", False),
        ("segment.ms", "1", False),
    ],
)
def test_each_setting_of_a_log_is_judged(name: str, value: str, is_wrong: bool) -> None:
    """Settings that could lose or reorder records are problems; an operator's choices are not."""
    rules = log_rules(ShardTopics("ks", "-"), TopicSettings())
    settings = {**rules.settings(), "min.insync.replicas": "2", name: value}

    problems = problems_of(rules, FoundTopic(1, settings, 3), "broker:9092")

    assert bool(problems) == is_wrong
    assert all(f"--add-config {name}=" in problem for problem in problems)


@pytest.mark.parametrize("name", ["cleanup.policy", "message.timestamp.type"])
def test_a_required_setting_that_the_broker_lacks_is_wrong(name: str) -> None:
    """What records depend on must be known."""
    rules = log_rules(ShardTopics("ks", "-"), TopicSettings(replication_factor=3))
    settings = {**rules.settings(), "min.insync.replicas": "2"}
    del settings[name]

    [problem] = problems_of(rules, FoundTopic(1, settings, 3), "broker:9092")

    assert f"{name} is not reported by the broker, must be" in problem


@pytest.mark.parametrize(
    ("name", "found", "cost"),
    [
        ("message.timestamp.after.max.ms", None, "is not reported by the broker: a broker that"),
        ("unclean.leader.election.enable", None, "is not reported by the broker: ask who runs"),
        ("min.insync.replicas", None, "is not reported by the broker: ask who runs Kafka how many"),
        (
            "max.message.bytes",
            "8388608",
            "is 8388608, wanted is 100663296: a larger record goes in parts, which readers join",
        ),
        (
            "message.timestamp.after.max.ms",
            "3600000",
            f"is 3600000, wanted is {FOREVER_MS}: a broker that limits",
        ),
    ],
)
def test_what_a_provider_does_not_allow_has_a_price(
    name: str, found: str | None, cost: str
) -> None:
    """Such a topic is used, and one sentence says what that costs."""
    rules = log_rules(ShardTopics("ks", "-"), TopicSettings(replication_factor=3))
    settings = {**rules.settings(), "min.insync.replicas": "2"}
    assert costs_of(rules, FoundTopic(1, settings, 3)) == []
    if found is None:
        del settings[name]
    else:
        settings[name] = found
    topic = FoundTopic(1, settings, 3)

    [sentence] = costs_of(rules, topic)

    assert sentence.startswith(f"{rules.topic}: {name} {cost}")
    assert problems_of(rules, topic, "broker:9092") == []


@pytest.fixture
def unreported(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names that the test adds are missing in what brokers answer, as at some providers."""
    names: set[str] = set()
    describe = AdminClient.describe_configs

    def describe_less(admin: AdminClient, resources: Any, **options: Any) -> Any:
        answers = describe(admin, resources, **options)
        for resource, future in answers.items():
            entries = {n: e for n, e in future.result(TIMEOUT_S).items() if n not in names}
            answers[resource] = Future()
            answers[resource].set_result(entries)
        return answers

    monkeypatch.setattr(AdminClient, "describe_configs", describe_less)
    return names


def test_settings_that_a_broker_does_not_report_are_named(
    config: ClientConfig, shard: ShardTopics, unreported: set[str]
) -> None:
    """Those that nobody needs are warned of, one that is required refuses the topic by name."""
    provision_shard(config, shard)
    kept = {"segment.ms", "retention.ms", "retention.bytes", "default.replication.factor"}
    unreported |= kept | {"transaction.max.timeout.ms"}

    provision_shard(config, shard)
    warnings = topic_warnings(config, [shard, ShardTopics(shard.keyspace, "80-")])
    timeout_ms = broker_transaction_timeout_ms(config)
    unreported.add("message.timestamp.type")
    with pytest.raises(WrongTopic) as refused:
        provision_shard(config, shard)

    assert all(any(name in warning for warning in warnings) for name in kept)
    assert timeout_ms >= 60_000
    assert {p.partition(": kafka-configs")[0] for p in refused.value.problems} == {
        f"{topic}: message.timestamp.type is not reported by the broker, must be CreateTime"
        for topic in (shard.log, shard.progress, shard.copy)
    }
