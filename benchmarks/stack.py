"""The real servers that the benchmarks share: started on first use, killed at the end."""

import secrets
from pathlib import Path
from typing import Self

from rich.console import Console

from shardstream.local.cache_server import RedisServer
from shardstream.local.database_server import LocalAccount, MysqlServer
from shardstream.local.kafka_cluster import VERSION as KAFKA_VERSION
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.postgres_server import PostgresServer
from tests.certificates import Certificates

SERVER_ID_FIRST = 9500
REPLICA_ID_FIRST = 9600
LOOPBACK = "127.0.0.1"
# Filling is not measured: no commit waits for the disk, and pages stay in memory.
FAST_FILL = (
    "--sync-binlog=0",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-buffer-pool-size=512M",
    "--innodb-redo-log-capacity=1G",
    "--max-binlog-size=1G",
)
BROKER_HEAP_MB = 1024
# As docs/second-database.md advises for a large target; it waits for the disk, as by default.
POSTGRES_ARGS = (
    *("-c", "max_wal_size=4GB", "-c", "wal_compression=lz4"),
    *("-c", "shared_buffers=1GB"),
)


class Stack:
    """One broker, Redis and PostgreSQL, and any number of MySQL servers, all in one folder."""

    def __init__(self, folder: Path, console: Console) -> None:
        """Start nothing yet."""
        self.folder = folder
        self._console = console
        self._servers: list[MysqlServer] = []
        self._replicas: list[MysqlServer] = []
        self._kafka: KafkaCluster | None = None
        self._three_brokers: KafkaCluster | None = None
        self._redis: RedisServer | None = None
        self._postgres: PostgresServer | None = None
        # Whether to use TLS is up to the client.
        self._certificates = Certificates(folder, LOOPBACK)

    @property
    def ca(self) -> str:
        """The file of the CA that signed the MySQL servers' certificate."""
        return self._certificates.ca

    def report(self, message: str) -> None:
        """Print what is being done."""
        self._console.print(f"[dim]  {message}[/]", highlight=False)

    def kafka(self) -> KafkaCluster:
        """Return the broker. Raises Halt if it does not start."""
        if self._kafka is None:
            self._kafka = self._cluster("kafka", 1)
        return self._kafka

    def three_brokers(self) -> KafkaCluster:
        """Return a cluster with all topics on three brokers, two in sync. Errors as above."""
        if self._three_brokers is None:
            self._three_brokers = self._cluster("kafka-3", 3)
        return self._three_brokers

    def stop_three_brokers(self) -> None:
        """Let others have what an idle cluster takes."""
        if self._three_brokers is not None:
            self._three_brokers.kill()
            self._three_brokers = None

    def _cluster(self, name: str, brokers: int) -> KafkaCluster:
        cluster = KafkaCluster(
            self.folder / name,
            brokers=brokers,
            heap_mb=BROKER_HEAP_MB,
            die_with_parent=True,
            report=self.report,
        )
        cluster.start()
        return cluster

    def mysql(self, index: int) -> MysqlServer:
        """Return server `index`, from 0. Raises UsageError if MySQL is not available, else Halt."""
        while len(self._servers) <= index:
            number = len(self._servers)
            server = MysqlServer(
                self.folder / f"mysql-{number}",
                server_id=SERVER_ID_FIRST + number,
                account=LocalAccount("shardstream", secrets.token_hex(8)),
                extra_args=(
                    *FAST_FILL,
                    f"--ssl-ca={self._certificates.ca}",
                    f"--ssl-cert={self._certificates.cert}",
                    f"--ssl-key={self._certificates.key}",
                ),
                die_with_parent=True,
                report=self.report,
            )
            self._servers.append(server)
            server.start()
        return self._servers[index]

    def replica_of(self, primary: MysqlServer) -> MysqlServer:
        """Return a new server with a primary's account; it follows nothing yet. Errors as above."""
        number = len(self._replicas)
        replica = MysqlServer(
            self.folder / f"replica-{number}",
            server_id=REPLICA_ID_FIRST + number,
            account=LocalAccount(primary.user, primary.password),
            extra_args=FAST_FILL,
            die_with_parent=True,
            report=self.report,
        )
        self._replicas.append(replica)
        replica.start()
        return replica

    def redis(self) -> RedisServer:
        """Return the Redis server. Raises UsageError if Redis is not available, else Halt."""
        if self._redis is None:
            self._redis = RedisServer(
                self.folder / "redis", die_with_parent=True, report=self.report
            )
            self._redis.start()
        return self._redis

    def postgres(self) -> PostgresServer:
        """Return the PostgreSQL server. UsageError if PostgreSQL is not available, else Halt."""
        if self._postgres is None:
            self._postgres = PostgresServer(
                self.folder / "postgres",
                password=secrets.token_hex(8),
                extra_args=POSTGRES_ARGS,
                die_with_parent=True,
                report=self.report,
            )
            self._postgres.start()
        return self._postgres

    def versions(self) -> dict[str, str]:
        """Return the versions of the servers that were started."""
        found: dict[str, str] = {
            server.flavor: server.binaries().version for server in self._servers[:1]
        }
        return found if self._kafka is None else {**found, "kafka": KAFKA_VERSION}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for server in (*self._servers, *self._replicas):
            server.kill()
        if self._redis is not None:
            self._redis.kill()
        if self._postgres is not None:
            self._postgres.kill()
        self.stop_three_brokers()
        if self._kafka is not None:
            self._kafka.kill()
