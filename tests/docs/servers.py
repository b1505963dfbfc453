"""The servers that a page of the docs speaks of: started when the page names them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pymysql.constants import CLIENT

from shardstream.local.database_server import (
    DatabaseConnection,
    LocalAccount,
    LocalDatabase,
    MariadbServer,
    MysqlServer,
)
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.stack import Stack, read_shape

# What the docs call the reader's own servers. All else on a page is run as it stands.
KAFKA = re.compile(r"kafka-1:9092(?:,kafka-\d:9092)*")
DATABASES = ("db-a", "db-b", "db-c", "db-d")
HOST = 'host = "{name}"'
ADDRESS = 'host = "127.0.0.1", port = {port}'
# The same in Python.
HOST_ARGUMENT = HOST.replace(" ", "")
ADDRESS_ARGUMENTS = 'host="127.0.0.1", port={port}'

# A target's settings, and commands that reach it. A page whose commands are only parsed has none.
TARGET = re.compile(r"^\[keyspaces\.\w+\.targets\..*\n.*\n.*host = \"(db-\w)\"", re.MULTILINE)
RESHARDS = re.compile(r"^```shell(?! parse).*\n(?:[^`].*\n)*?shardstream reshard ", re.MULTILINE)

# An account of no use: those of a page are made by the page.
NOBODY = LocalAccount("nobody", "nothing")
SERVER_ID_FIRST = 9300


class PageServers:
    """The Kafka cluster and the database servers that one page names, by the page's names.

    Targets of a reshard are left out where the page runs none. A page without any of them may start
    its own by `shardstream local up`; these are stopped too.
    """

    def __init__(self, folder: Path, page: str) -> None:
        self._folder = folder
        unreached = set() if RESHARDS.search(page) else set(TARGET.findall(page))
        self.databases: dict[str, LocalDatabase] = {
            name: self._database(MysqlServer, name, SERVER_ID_FIRST + number)
            for number, name in enumerate(DATABASES)
            if name not in unreached
            and (HOST.format(name=name) in page or HOST_ARGUMENT.format(name=name) in page)
        }
        if "on=mariadb" in page:
            self.databases["mariadb"] = self._database(
                MariadbServer, "mariadb", SERVER_ID_FIRST + len(DATABASES)
            )
        self.kafka = (
            KafkaCluster(folder / "kafka", die_with_parent=True) if KAFKA.search(page) else None
        )

    def _database(self, kind: type[LocalDatabase], name: str, server_id: int) -> LocalDatabase:
        return kind(self._folder / name, server_id=server_id, account=NOBODY, die_with_parent=True)

    def __enter__(self) -> Self:
        for server in self.databases.values():
            server.launch()
        if self.kafka is not None:
            self.kafka.start()
        for server in self.databases.values():
            server.finish_start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for server in self.databases.values():
            server.kill()
        if self.kafka is not None:
            self.kafka.kill()
        stack = self._local_stack()
        if stack is not None:
            stack.kill()

    def replaced(self, text: str) -> str:
        """The text with the addresses of the running servers in place of the page's names."""
        if self.kafka is not None:
            text = KAFKA.sub(self.kafka.bootstrap_servers, text)
        for name, server in self.databases.items():
            text = text.replace(HOST.format(name=name), ADDRESS.format(port=server.port))
            text = text.replace(
                HOST_ARGUMENT.format(name=name), ADDRESS_ARGUMENTS.format(port=server.port)
            )
        return text

    def run_sql(self, statements: str, on: str | None) -> None:
        """Run statements as root: on one server, on all of a family, or (None) on all."""
        chosen = list(self._roots(on))
        assert chosen, f"the page has no server {on or ''}"
        for connection in chosen:
            with connection, connection.cursor() as cursor:
                cursor.execute(statements)
                while cursor.nextset():
                    pass

    def _roots(self, on: str | None) -> Iterator[DatabaseConnection]:
        databases = self.databases
        stack = self._local_stack()
        if stack is not None:
            databases = databases | stack.databases
        for name, server in databases.items():
            if on in {None, name, server.flavor.value}:
                yield server.connect(client_flag=CLIENT.MULTI_STATEMENTS)

    def _local_stack(self) -> Stack | None:
        """What `shardstream local up` has started in the page's folder."""
        folder = self._folder / ".local"
        shape = read_shape(folder)
        return None if shape is None else Stack(folder, shape)
