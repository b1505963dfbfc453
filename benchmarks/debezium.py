"""Debezium under Kafka Connect standalone: the same binlog, the same broker."""

import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.binlog_fill import DATABASE
from benchmarks.watch import PEER_MESSAGE_BYTES_MAX, server_cpu_s
from shardstream.local.database_server import MysqlServer
from shardstream.local.fetching import MavenArtifact, Report, cached, fetch_all, java_command, quiet
from shardstream.local.local_server import free_ports
from shardstream.local.processes import ServerProcess

DEBEZIUM_VERSION = "3.6.0.Final"
CONNECT_VERSION = "4.3.1"
PEER = f"Debezium {DEBEZIUM_VERSION}"
PLUGIN = MavenArtifact(
    "io.debezium",
    "debezium-connector-mysql",
    DEBEZIUM_VERSION,
    "plugin",
    "tar.gz",
    transitive=False,
)
CONNECT_JARS = [
    MavenArtifact("org.apache.kafka", "connect-runtime", CONNECT_VERSION),
    MavenArtifact("org.slf4j", "slf4j-simple", "1.7.36"),
]
HEAP_MB = 3072
PREFIX = "debezium"
SERVER_ID = 5401
# On SIGTERM the task ends, flushes its records and stores its offset.
STOP_S_MAX = 60.0

_WORKER = """\
bootstrap.servers={brokers}
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable=false
value.converter.schemas.enable=false
offset.storage.file.filename={offsets}
offset.flush.interval.ms=5000
plugin.path={plugins}
listeners=HTTP://127.0.0.1:{rest_port}
plugin.discovery=service_load
producer.batch.size=262144
producer.linger.ms=5
producer.compression.type=lz4
producer.max.request.size={request_bytes}
"""
# The large queue and batch let it run as fast as it can. A delete is one message, as with us.
_CONNECTOR = """\
name={prefix}
connector.class=io.debezium.connector.mysql.MySqlConnector
tasks.max=1
database.hostname={host}
database.port={port}
database.user={user}
database.password=
database.server.id={server_id}
database.ssl.mode=disabled
topic.prefix={prefix}
topic.creation.default.replication.factor=1
topic.creation.default.partitions=1
database.include.list={database}
schema.history.internal.kafka.bootstrap.servers={brokers}
schema.history.internal.kafka.topic={prefix}.history
snapshot.mode=no_data
include.schema.changes=false
tombstones.on.delete=false
max.batch.size=8192
max.queue.size=32768
poll.interval.ms=50
"""


def topic_of(table: str) -> str:
    """Return the topic to which Debezium writes a table's changes."""
    return f"{PREFIX}.{DATABASE}.{table}"


def connect_jars(report: Report = quiet) -> Path:
    """Return the folder with Kafka Connect's jars. UsageError without Java, Halt if that fails."""
    return fetch_all(f"connect-{CONNECT_VERSION}", CONNECT_JARS, report=report)


def plugin_folder(report: Report = quiet) -> Path:
    """Return the unpacked connector. Raises UsageError without Java, Halt if a fetch fails."""
    archive = (
        fetch_all(f"debezium-plugin-{DEBEZIUM_VERSION}", [PLUGIN], report=report) / PLUGIN.file_name
    )

    def unpack(folder: Path) -> None:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")

    return cached(f"debezium-mysql-{DEBEZIUM_VERSION}", unpack, report=report)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The server and broker that Debezium connects."""

    server: MysqlServer
    bootstrap_servers: str


class Debezium:
    """One connector; its stored offset can be reset, to drain the same stretch again."""

    def __init__(
        self,
        folder: Path,
        endpoints: Endpoints,
        *,
        report: Report = quiet,
        more_connector: str = "",
    ) -> None:
        """Write its settings to `folder` and fetch what is missing. Start nothing yet."""
        self._jars = connect_jars(report)
        plugins = plugin_folder(report)
        self._folder = folder.resolve()
        self._folder.mkdir(parents=True)
        self._offsets = self._folder / "offsets"
        self._kept_offsets = self._folder / "offsets.kept"
        self._process = ServerProcess("kafka connect", self._folder, die_with_parent=True)
        brokers = endpoints.bootstrap_servers
        self._worker = self._folder / "worker.properties"
        self._worker.write_text(
            _WORKER.format(
                brokers=brokers,
                offsets=self._offsets,
                plugins=plugins,
                rest_port=free_ports(1)[0],
                request_bytes=PEER_MESSAGE_BYTES_MAX,
            )
        )
        self._connector = self._folder / "connector.properties"
        self._connector.write_text(
            _CONNECTOR.format(
                brokers=brokers,
                prefix=PREFIX,
                host=endpoints.server.host,
                port=endpoints.server.port,
                user=endpoints.server.root_user,
                server_id=SERVER_ID,
                database=DATABASE,
            )
            + more_connector  # the last of two settings of one name applies
        )

    def check_alive(self) -> None:
        """Raise Halt with the log's tail if it has ended."""
        self._process.check_alive()

    def cpu_s(self) -> float:
        """Return the CPU time used since its start. Raises Halt if it has ended."""
        return server_cpu_s(self._process)

    def start(self) -> None:
        """Start from the stored offset, without waiting."""
        self._process.launch(
            [
                java_command(),
                f"-Xmx{HEAP_MB}m",
                "-cp",
                f"{self._jars}/*",
                "org.apache.kafka.connect.cli.ConnectStandalone",
                str(self._worker),
                str(self._connector),
            ]
        )

    def stop(self) -> None:
        """Stop cleanly, so that the offset of what has been read is stored."""
        self._process.stop(STOP_S_MAX)

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    def keep_offset(self) -> None:
        """Keep the currently stored offset, for `restore_offset`."""
        shutil.copyfile(self._offsets, self._kept_offsets)

    def restore_offset(self) -> None:
        """Reset the stored offset to the one that was kept."""
        shutil.copyfile(self._kept_offsets, self._offsets)
