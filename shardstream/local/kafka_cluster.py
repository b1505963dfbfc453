"""A real Kafka cluster on loopback: KRaft, each node broker and controller at once."""

import base64
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from event_token.errors import Halt, UsageError
from shardstream.local.fetching import MavenArtifact, Report, cached, fetch_all, java_command, quiet
from shardstream.local.local_server import (
    HOST,
    PORT_TAKEN,
    KeepsPorts,
    ServerInFolder,
    answers,
)
from shardstream.local.processes import STOP_S_MAX, run_step

FORMAT_S_MAX = 120.0
META = "meta.properties"
# The first records of a new cluster's metadata: the versions of its features.
FIRST_RECORDS = "bootstrap.checkpoint"


def random_id() -> str:
    """Return 16 random bytes as Kafka prints a uuid."""
    drawn = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
    # A leading dash would be taken for an option.
    return drawn.replace("-", "A")


def formatted_template(
    jars: Path, version: str, settings: Mapping[str, str], report: Report
) -> Path:
    """Return a folder as Kafka of this version formats it; `settings` are any broker's.

    Raises Halt if formatting fails.
    """

    def make(folder: Path) -> None:
        report(f"formatting a folder for Kafka {version}")
        path = folder / "server.properties"
        chosen = {**settings, "log.dirs": str(folder / "data")}
        path.write_text("".join(f"{key}={value}\n" for key, value in chosen.items()))
        tool = ["kafka.tools.StorageTool", "format", "-t", random_id(), "-c", str(path)]
        run_step(
            [java_command(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", *tool],
            what=f"formatting a folder for Kafka {version}",
            timeout_s=FORMAT_S_MAX,
        )

    return cached(f"kafka-formatted-{version}", make, report=report) / "data"


def format_folder(template: Path, folder: Path, *, cluster_id: str, node_id: int) -> None:
    """Make `folder` a formatted one of this node, unless it is one already."""
    meta = folder / META
    if meta.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(template / FIRST_RECORDS, folder / FIRST_RECORDS)
    lines = (template / META).read_text().splitlines()
    ids = {"cluster.id": cluster_id, "node.id": str(node_id), "directory.id": random_id()}
    kept = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    # Last and at once: a folder with it counts as formatted.
    new = meta.with_suffix(".new")
    new.write_text("".join(f"{key}={value}\n" for key, value in {**kept, **ids}.items()))
    new.rename(meta)


VERSION = "4.3.1"
JARS = [
    MavenArtifact("org.apache.kafka", "kafka_2.13", VERSION),
    # Prints the broker's log; the version that matches Kafka's slf4j-api.
    MavenArtifact("org.slf4j", "slf4j-simple", "1.7.36"),
]
# One broker, or three: with replication 3 the loss of one leaves a majority, and more add nothing.
BROKER_COUNTS = (1, 3)
HEAP_MB = 512
METADATA_S_MAX = 5.0


def kafka_jars(report: Report = quiet) -> Path:
    """Return the folder with the broker's jars.

    Raises UsageError without Java, Halt if they cannot be fetched.
    """
    return fetch_all(f"kafka-{VERSION}", JARS, report=report)


def broker_settings(
    node_id: int, ports: Mapping[int, tuple[int, int]], folder: Path
) -> dict[str, str]:
    """Return one node's settings; `ports` holds (client, controller) ports by node id. Pure."""
    client_port, controller_port = ports[node_id]
    replicas = len(ports)
    listeners = f"PLAINTEXT://{HOST}:{client_port},CONTROLLER://{HOST}:{controller_port}"
    in_sync_min = 2 if replicas > 1 else 1
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(
            f"{node}@{HOST}:{pair[1]}" for node, pair in ports.items()
        ),
        "listeners": listeners,
        "advertised.listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(folder / "data"),
        # A topic that was not provisioned is a mistake that must not go unnoticed.
        "auto.create.topics.enable": "false",
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync_min),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync_min),
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(in_sync_min),
        # Fewer than the default of 50 partitions: the first transaction waits until all are loaded.
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        # Twice a second, the default, takes a third of an idle broker's processor time.
        "metadata.max.idle.interval.ms": "5000",
        # 16 MB: the default of 128 is a quarter of the heap.
        "log.cleaner.dedupe.buffer.size": "16777216",
    }


class KafkaBroker(ServerInFolder):
    """One node of a cluster, which can be stopped, killed and restarted separately."""

    # A start takes about 5 s, far longer beside ten others; one that dies is noticed at once.
    ready_s_max = 300.0
    ready_poll_s = 0.2

    def __init__(
        self, node_id: int, folder: Path, cluster_id: str, *, heap_mb: int, die_with_parent: bool
    ) -> None:
        """Start nothing yet."""
        super().__init__(folder, f"kafka broker {node_id}", die_with_parent=die_with_parent)
        self.node_id = node_id
        self._cluster_id = cluster_id
        self._heap_mb = heap_mb
        self._client_port = 0
        self._admin: AdminClient | None = None

    @property
    def address(self) -> str:
        """Host and port for clients."""
        return f"{HOST}:{self._client_port}"

    def configure(self, ports: Mapping[int, tuple[int, int]]) -> None:
        """Write the broker's settings file."""
        self._client_port = ports[self.node_id][0]
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = broker_settings(self.node_id, ports, self.folder).items()
        self._settings_path.write_text("".join(f"{key}={value}\n" for key, value in lines))

    def format(self, template: Path) -> None:
        """Format the broker's folder, unless it is formatted already."""
        format_folder(
            template, self.folder / "data", cluster_id=self._cluster_id, node_id=self.node_id
        )

    def launch(self) -> None:
        """Start without waiting: `wait_ready` follows."""
        jars = kafka_jars()
        self._process.launch(
            [
                java_command(),
                f"-Xmx{self._heap_mb}m",
                "-XX:+ExitOnOutOfMemoryError",
                "-Djava.awt.headless=true",
                "-Dorg.slf4j.simpleLogger.showDateTime=true",
                "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
                "-cp",
                f"{jars}/*",
                "kafka.Kafka",
                str(self._settings_path),
            ]
        )

    def start(self) -> None:
        """Start and wait until it serves. Raises Halt with the log's tail."""
        self.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until this broker answers and has joined the cluster. Raises Halt."""
        try:
            super().wait_ready()
        finally:
            self._admin = None

    def serves(self) -> bool:
        """Whether this broker answers and has joined the cluster; Halt if another one answers."""
        if not answers(self._client_port):
            return False
        self._admin = self._admin or AdminClient({"bootstrap.servers": self.address})
        try:
            metadata = self._admin.list_topics(timeout=METADATA_S_MAX)
        except KafkaException:
            return False
        if metadata.cluster_id != self._cluster_id:
            raise Halt(
                f"{self.address} of {self.name} is {PORT_TAKEN} by cluster {metadata.cluster_id}"
            )
        return self.node_id in metadata.brokers

    @property
    def _settings_path(self) -> Path:
        return self.folder / "server.properties"


class KafkaCluster(KeepsPorts):
    """One or three brokers in one folder."""

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 1,
        heap_mb: int = HEAP_MB,
        die_with_parent: bool = False,
        report: Report = quiet,
    ) -> None:
        """Start nothing yet. UsageError for another number."""
        if brokers not in BROKER_COUNTS:
            raise UsageError(f"a cluster has 1 or 3 brokers, not {brokers}")
        self.folder = folder.resolve()
        self._report = report
        self._launched: Sequence[KafkaBroker] = ()
        cluster_id = self._kept_cluster_id()
        self.brokers = tuple(
            KafkaBroker(
                node_id,
                self.folder / f"broker-{node_id}",
                cluster_id,
                heap_mb=heap_mb,
                die_with_parent=die_with_parent,
            )
            for node_id in range(1, brokers + 1)
        )
        if self.has_ports:
            self._configure()

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap servers, for clients. Raises Halt before the first start."""
        if not self.has_ports:
            raise Halt("the Kafka cluster has not been started yet, it has no ports")
        return ",".join(broker.address for broker in self.brokers)

    def launch(self) -> None:
        """Start the brokers that are not running, without waiting: `finish_start` follows."""
        jars = kafka_jars(self._report)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._choose_ports(2 * len(self.brokers))
        self._configure()
        settings = broker_settings(1, {1: (1, 2)}, self.folder)
        template = formatted_template(jars, VERSION, settings, self._report)
        for broker in self.brokers:
            broker.format(template)
        self._report(f"starting Kafka {VERSION}, {len(self.brokers)} broker(s)")
        self._launched = [broker for broker in self.brokers if broker.pid is None]
        for broker in self._launched:
            broker.launch()

    def wait_ready(self) -> None:
        """Wait until every broker has joined. Raises Halt."""
        for broker in self.brokers:
            broker.wait_ready()

    def stop(self) -> None:
        """Shut all brokers down and wait."""
        for broker in self.brokers:
            broker.ask_to_stop()
        for broker in self.brokers:
            # The last ones have nobody to hand over to and would wait for minutes.
            broker.stop(STOP_S_MAX if len(self.brokers) == 1 else STOP_S_MAX / len(self.brokers))

    def kill(self) -> None:
        """Kill all brokers and wait."""
        for broker in self.brokers:
            broker.kill()

    def _kept_cluster_id(self) -> str:
        path = self.folder / "cluster_id"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(random_id())
        return path.read_text()

    def _configure(self) -> None:
        kept = self._kept_ports()
        count = len(self.brokers)
        if len(kept) != 2 * count:
            raise UsageError(
                f"{self.folder} holds a cluster of {len(kept) // 2} broker(s), not {count}: "
                "choose another folder"
            )
        ports = {
            broker.node_id: (kept[i], kept[count + i]) for i, broker in enumerate(self.brokers)
        }
        for broker in self.brokers:
            broker.configure(ports)
