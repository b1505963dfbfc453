"""Debezium's JDBC sink under Kafka Connect: reads table topics into PostgreSQL, as a user would."""

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.debezium import DEBEZIUM_VERSION, connect_jars
from shardstream.local.fetching import MavenArtifact, cached, fetch_all, java_command
from shardstream.local.local_server import free_ports
from shardstream.local.processes import ServerProcess
from tests.postgres_servers import PostgresFixture

PLUGIN = MavenArtifact(
    "io.debezium",
    "debezium-connector-jdbc",
    DEBEZIUM_VERSION,
    "plugin",
    "tar.gz",
    transitive=False,
)
HEAP_MB = 256
_WORKER = """\
bootstrap.servers={brokers}
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable=true
value.converter.schemas.enable=true
offset.storage.file.filename={folder}/offsets
plugin.path={plugins}
plugin.discovery=service_load
listeners=HTTP://127.0.0.1:{rest_port}
consumer.auto.offset.reset=earliest
consumer.isolation.level=read_committed
"""
_CONNECTOR = """\
name={name}
connector.class=io.debezium.connector.jdbc.JdbcSinkConnector
tasks.max=1
topics={topic}
connection.url=jdbc:postgresql://{host}:{port}/{database}
connection.username={user}
connection.password={password}
insert.mode=upsert
delete.enabled=true
primary.key.mode=record_key
schema.evolution=basic
collection.name.format=orders
"""


def plugin_folder() -> Path:
    """Return the unpacked connector."""
    name = f"debezium-jdbc-plugin-{DEBEZIUM_VERSION}"
    archive = fetch_all(name, [PLUGIN]) / PLUGIN.file_name

    def unpack(folder: Path) -> None:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")

    return cached(f"debezium-jdbc-{DEBEZIUM_VERSION}", unpack)


@contextmanager
def jdbc_sink(
    folder: Path, brokers: str, topic: str, postgres: PostgresFixture, database: str
) -> Iterator[ServerProcess]:
    """Run a sink of one topic from its beginning into table `orders`, which the sink creates."""
    jars, plugins = connect_jars(), plugin_folder()
    folder.mkdir()
    worker, connector = folder / "worker.properties", folder / "connector.properties"
    worker.write_text(
        _WORKER.format(brokers=brokers, folder=folder, plugins=plugins, rest_port=free_ports(1)[0])
    )
    connector.write_text(
        _CONNECTOR.format(
            name=topic,
            topic=topic,
            host=postgres.host,
            port=postgres.port,
            database=database,
            user=postgres.user,
            password=postgres.password,
        )
    )
    process = ServerProcess("kafka connect", folder, die_with_parent=True)
    process.launch(
        [
            java_command(),
            f"-Xmx{HEAP_MB}m",
            "-cp",
            f"{jars}/*",
            "org.apache.kafka.connect.cli.ConnectStandalone",
            str(worker),
            str(connector),
        ]
    )
    try:
        yield process
    finally:
        process.kill()
