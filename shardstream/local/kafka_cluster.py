"""A real Kafka cluster on loopback: KRaft, each node broker and controller at once."""

import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from event_token.errors import Halt, UsageError
from shardstream.local.fetching.cache import Report, quiet
from shardstream.local.fetching.maven import MavenArtifact, fetch_all, java_command
from shardstream.local.kafka_format import format_folder, formatted_template, random_id
from shardstream.local.ports import HOST, answers, finish_start, free_ports
from shardstream.local.processes import STOP_S_MAX, ServerProcess

VERSION = "4.3.1"
JARS = [
    MavenArtifact("org.apache.kafka", "kafka_2.13", VERSION),
    # Prints the broker's log; the version that matches Kafka's slf4j-api.
    MavenArtifact("org.slf4j", "slf4j-simple", "1.7.36"),
]
# One broker, or three: with replication 3 the loss of one leaves a majority, and more add nothing.
BROKER_COUNTS = (1, 3)
HEAP_MB = 512
# A start takes about 5 s, far longer beside ten others; a broker that dies is noticed at once.
READY_S_MAX = 300.0
READY_POLL_S = 0.2
METADATA_S_MAX = 5.0
PORT_TAKEN = "already in use"


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


class KafkaBroker:
    """One node of a cluster, which can be stopped, killed and restarted separately."""

    def __init__(
        self, node_id: int, folder: Path, cluster_id: str, *, heap_mb: int, die_with_parent: bool
    ) -> None:
        """Start nothing yet."""
        self.node_id = node_id
        self.folder = folder
        self.name = f"kafka broker {node_id}"
        self._cluster_id = cluster_id
        self._heap_mb = heap_mb
        self._client_port = 0
        self._process = ServerProcess(self.name, folder, die_with_parent=die_with_parent)

    @property
    def pid(self) -> int | None:
        """The broker's process, None if it is not running."""
        return self._process.pid

    @property
    def address(self) -> str:
        """Host and port for clients."""
        return f"{HOST}:{self._client_port}"

    @property
    def log_path(self) -> Path:
        """The broker's log."""
        return self._process.log_path

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
        """Start and wait until this broker has joined the cluster; Halt shows the log's tail."""
        self.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until this broker answers and has joined the cluster. Raises Halt."""
        deadline = time.monotonic() + READY_S_MAX
        client: AdminClient | None = None
        while True:
            self._process.check_alive()
            if answers(self._client_port):
                client = client or AdminClient({"bootstrap.servers": self.address})
                if self._counted_in(client):
                    return
            if time.monotonic() > deadline:
                raise self._process.fail_start(READY_S_MAX)
            time.sleep(READY_POLL_S)

    def stop(self, timeout_s: float = STOP_S_MAX) -> None:
        """Hand over leaderships and shut down; kill after `timeout_s` seconds."""
        self._process.stop(timeout_s)

    def ask_to_stop(self) -> None:
        """Ask for a shutdown without waiting; `stop` waits."""
        self._process.ask_to_stop()

    def kill(self) -> None:
        """Kill without warning and wait."""
        self._process.kill()

    @property
    def port_taken(self) -> bool:
        """Return whether the log reports that another process has one of the broker's ports."""
        return self._process.log_says(PORT_TAKEN)

    @property
    def _settings_path(self) -> Path:
        return self.folder / "server.properties"

    def _counted_in(self, client: AdminClient) -> bool:
        try:
            metadata = client.list_topics(timeout=METADATA_S_MAX)
        except KafkaException:
            return False
        if metadata.cluster_id != self._cluster_id:
            message = (
                f"{self.address} of {self.name} is {PORT_TAKEN} by cluster {metadata.cluster_id}"
            )
            raise Halt(message)
        return self.node_id in metadata.brokers


class KafkaCluster:
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
            message = f"a cluster has 1 or 3 brokers, not {brokers}"
            raise UsageError(message)
        self.folder = folder.resolve()
        self._report = report
        self._ports_are_new = False
        self._launched: list[KafkaBroker] = []
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
    def has_ports(self) -> bool:
        """Whether this folder's cluster has ever been started."""
        return self._ports_path.exists()

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap servers, for clients. Raises Halt before the first start."""
        if not self.has_ports:
            message = "the Kafka cluster has not been started yet, it has no ports"
            raise Halt(message)
        return ",".join(broker.address for broker in self.brokers)

    def start(self) -> None:
        """Start the brokers that are not running, wait for all; Halt shows the log's tail."""
        self.launch()
        self.finish_start()

    def finish_start(self) -> None:
        """Wait for launched brokers; launch them again if their new ports were taken meanwhile.

        Raises Halt with the log's tail, and then leaves no process behind.
        """
        finish_start(self.wait_ready, self._abandon, self._launch_elsewhere)
        self._ports_are_new = False

    def _abandon(self) -> bool:
        taken = any(broker.port_taken for broker in self.brokers)
        for broker in self._launched:
            broker.kill()
        return taken and self._ports_are_new

    def _launch_elsewhere(self) -> None:
        self._ports_path.unlink()
        for broker in self.brokers:
            broker.log_path.unlink(missing_ok=True)
        self.launch()

    def launch(self) -> None:
        """Start without waiting: `wait_ready` follows."""
        jars = kafka_jars(self._report)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.has_ports:
            self._ports_are_new = True
            ports = free_ports(2 * len(self.brokers))
            self._ports_path.write_text("".join(f"{port}\n" for port in ports))
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

    @property
    def _ports_path(self) -> Path:
        return self.folder / "ports"

    def _kept_cluster_id(self) -> str:
        path = self.folder / "cluster_id"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(random_id())
        return path.read_text()

    def _configure(self) -> None:
        kept = [int(line) for line in self._ports_path.read_text().split()]
        count = len(self.brokers)
        if len(kept) != 2 * count:
            message = (
                f"{self.folder} holds a cluster of {len(kept) // 2} broker(s), not {count}: "
                "choose another folder"
            )
            raise UsageError(message)
        ports = {
            broker.node_id: (kept[i], kept[count + i]) for i, broker in enumerate(self.brokers)
        }
        for broker in self.brokers:
            broker.configure(ports)
