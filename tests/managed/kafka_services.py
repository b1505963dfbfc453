"""Brokers that create topics only as managed services do."""

import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from producers.settings import ShardProducerSettings
from shardstream.local import kafka_cluster
from shardstream.local.fetching import MavenArtifact, Report, fetch_all, java_command, quiet
from shardstream.local.kafka_cluster import KafkaCluster, broker_settings
from shardstream.local.processes import run_step
from tests.faults.listeners import ListeningCluster
from tests.topics.schemas.writing import topic_setting
from topics.kafka.provisioning import (
    provision_keyspace,
    provision_positions_topic,
    provision_readers,
    provision_schemas_topic,
    topic_warnings,
    wrong_topics,
)
from topics.names import ShardTopics

MIB = 1024 * 1024
IDLE_MS = 3_000
SOURCE = Path(__file__).with_name("TopicPolicy.java")

# What the services' documentation says of topics (2026): names that are allowed, or names that are
# refused, and the largest record.
MSK_SERVERLESS = {
    "managed.allowed": "cleanup.policy,compression.type,max.message.bytes,message.timestamp.type,"
    "message.timestamp.difference.max.ms,retention.bytes,retention.ms",
    "managed.bytes.max": str(8 * MIB),
}
CONFLUENT_BASIC = {
    "managed.refused": "unclean.leader.election.enable,segment.bytes",
    "managed.bytes.max": str(8 * MIB),
}
CONFLUENT_DEDICATED = CONFLUENT_BASIC | {"managed.bytes.max": str(20 * MIB)}


def jars_with_policy(folder: Path) -> Path:
    """Return a folder with Kafka's jars and the policy beside them."""
    folder.mkdir()
    jars = kafka_cluster.kafka_jars()
    for jar in jars.glob("*.jar"):
        (folder / jar.name).symlink_to(jar)
    made = folder / "classes"
    subprocess.run(
        ["javac", "-cp", f"{jars}/*", "-d", str(made), str(SOURCE)], check=True, timeout=120
    )
    with zipfile.ZipFile(folder / "policy.jar", "w") as jar_file:
        for path in made.rglob("*.class"):
            jar_file.write(path, path.relative_to(made))
    return folder


class ManagedCluster(ListeningCluster):
    """One broker with the limits of a service, and a listener that takes tokens alone."""

    def __init__(self, folder: Path, limits: Mapping[str, str]) -> None:
        """Start nothing yet."""
        self._limits = {
            "create.topic.policy.class.name": "managed.TopicPolicy",
            # Services close idle connections after minutes.
            "connections.max.idle.ms": str(IDLE_MS),
            **limits,
        }
        super().__init__(folder)

    def _configure(self) -> None:
        super()._configure()
        [broker] = self.brokers
        with (broker.folder / "server.properties").open("a") as settings:
            settings.writelines(f"{name}={value}\n" for name, value in self._limits.items())


SERVICES = {
    "msk-serverless": MSK_SERVERLESS,
    "confluent-basic": CONFLUENT_BASIC,
    "confluent-dedicated": CONFLUENT_DEDICATED,
}


def started(folder: Path, jars: Path, limits: Mapping[str, str]) -> Iterator[ManagedCluster]:
    """A broker with these limits, as long as it is used."""
    cluster = ManagedCluster(folder, limits)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kafka_cluster, "kafka_jars", lambda *_report: jars)
        try:
            cluster.launch()
            cluster.finish_start()
            yield cluster
        finally:
            cluster.kill()
            cluster.proxy.close()


# (topic, setting, value) that only a service causes.
CAUSED: dict[str, list[tuple[str, str, int | str]]] = {
    "msk-serverless": [
        ("log", "max.message.bytes", 8 * MIB),
        ("progress", "max.message.bytes", 8 * MIB),
        ("progress", "cleanup.policy", "delete"),
        ("progress", "retention.ms", -1),
    ],
    "confluent-basic": [
        ("log", "max.message.bytes", 8 * MIB),
        ("progress", "cleanup.policy", "compact"),
    ],
    "confluent-dedicated": [
        ("log", "max.message.bytes", 20 * MIB),
        ("progress", "max.message.bytes", 16 * MIB),
    ],
}


def provision_all(settings: ShardProducerSettings) -> None:
    """Create the topics that a producer does not create by itself."""
    provision_schemas_topic(settings.kafka)
    provision_keyspace(settings.kafka, settings.keyspace)
    provision_readers(settings.kafka, settings.keyspace)
    provision_positions_topic(settings.kafka)


def check_topics(service: str, settings: ShardProducerSettings) -> None:
    """The topics have what the service allows; what it does not is named where it matters."""
    config, shard = settings.kafka, ShardTopics(settings.keyspace, settings.shard)
    assert wrong_topics(config, [shard]) == []
    for topic, setting, value in CAUSED[service]:
        assert topic_setting(config, getattr(shard, topic), setting) == str(value)
    limited = next(v for t, s, v in CAUSED[service] if (t, s) == ("log", "max.message.bytes"))
    warnings = topic_warnings(config, [shard])
    wanted = f"max.message.bytes is {limited}, wanted is {96 * MIB}"
    assert f"{shard.log}: {wanted}: a larger record goes in parts, which readers join" in warnings


def limit_rates(cluster: KafkaCluster, client_id: str, written: int, read: int) -> None:
    """Set the quotas of a client: bytes per second that it may write, and read."""
    quotas = f"producer_byte_rate={written},consumer_byte_rate={read}"
    asked = ["--alter", "--entity-type", "clients", "--entity-name", client_id]
    asked += ["--add-config", quotas]
    tool = ["kafka.admin.ConfigCommand", "--bootstrap-server", cluster.bootstrap_servers]
    run_step(
        [java_command(), "-cp", f"{kafka_cluster.kafka_jars()}/*", *tool, *asked],
        what="setting quotas",
        timeout_s=120,
    )


OLD_VERSION = "3.5.2"
_OLD_JARS = [
    MavenArtifact("org.apache.kafka", "kafka_2.13", OLD_VERSION),
    MavenArtifact("org.slf4j", "slf4j-simple", "1.7.36"),
]


def old_jars(report: Report = quiet) -> Path:
    """Return the folder with the jars of a release that lacks some settings of topics."""
    return fetch_all(f"kafka-{OLD_VERSION}", _OLD_JARS, report=report)


def old_settings(
    node_id: int, ports: Mapping[int, tuple[int, int]], folder: Path
) -> dict[str, str]:
    """Return a node's settings as that release takes them: it does not advertise controllers."""
    settings = broker_settings(node_id, ports, folder)
    clients, _, _ = settings["advertised.listeners"].partition(",")
    return settings | {"advertised.listeners": clients}
