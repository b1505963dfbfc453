"""The demo's shop applies each transaction once, on the right shard, across a switch."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pymysql
import pytest

from shardstream.demo.shop import ShardDirectory, ShopChange, ShopSession, keyspace_id
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from topics.errors import NoBrokerAnswers
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_keyspace
from topics.kafka.topic_settings import TopicSettings
from topics.keyspace.topology import ShardEntry, ShardState, Topology, update_topology

# A customer of the right half.
CUSTOMER = next(c for c in range(1, 100) if keyspace_id(c) >= b"\x80")
LOST = pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")
MOVED = {"80-": ShardState.RETIRED, "80-c0": ShardState.SERVING, "c0-": ShardState.SERVING}
ORDER = ShopChange(
    CUSTOMER,
    (("INSERT INTO orders VALUES (%s, %s)", [(1, CUSTOMER), (2, CUSTOMER)]),),
    ("EXISTS(SELECT 1 FROM orders WHERE id = %s)", (1,)),
)
Connect = Callable[[], Any]


class _Shop:
    """Two shards, one of which is split; all on one server that they share as one database."""

    def __init__(self, kafka: KafkaCluster, keyspace: str, database: DatabaseFixture) -> None:
        self._config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
        self._keyspace = keyspace
        self._database = database
        self._schema = database.new_database()
        self.account = f"app_{secrets.token_hex(4)}"
        shards = (ShardEntry("-80"), ShardEntry("80-"))
        provision_keyspace(self._config, keyspace, TopicSettings())
        update_topology(self._config, keyspace, lambda _: Topology(keyspace, 0, shards))
        self.run(f"CREATE TABLE {self._schema}.orders (id BIGINT PRIMARY KEY, customer_id BIGINT)")
        self.run(f"CREATE USER '{self.account}'@'%' IDENTIFIED BY 'x'")
        self.run(f"GRANT ALL ON {self._schema}.* TO '{self.account}'@'%'")

    def run(self, statement: str) -> list[Any]:
        with self._database.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def connect(self, kind: type = pymysql.Connection, user: str = "") -> Any:
        place = {"host": self._database.host, "port": self._database.port}
        account = {"user": user, "password": "x"} if user else {"user": self._database.root_user}
        return kind(**place, **account, database=self._schema, ssl_disabled=True)

    def directory(self) -> ShardDirectory:
        return ShardDirectory(self._keyspace, self._config)

    def split(self) -> None:
        def split(before: Topology | None) -> Topology:
            assert before is not None
            known = {shard.name: shard.state for shard in before.shards} | MOVED
            return replace(before, shards=tuple(ShardEntry(*entry) for entry in known.items()))

        update_topology(self._config, self._keyspace, split)

    def orders(self) -> list[int]:
        return [row[0] for row in self.run(f"SELECT id FROM {self._schema}.orders ORDER BY id")]


@pytest.fixture
def shop(kafka: KafkaCluster, keyspace: str, mysql_a: DatabaseFixture) -> Iterator[_Shop]:
    """A shop with an application account of its own."""
    found = _Shop(kafka, keyspace, mysql_a)
    yield found
    found.run(f"DROP USER '{found.account}'@'%'")


class _CommitsUnheard(pymysql.Connection):  # type: ignore[misc]  # PyMySQL has no types
    def commit(self) -> None:
        super().commit()
        self._force_close()
        raise LOST


class _DiesBeforeCommit(pymysql.Connection):  # type: ignore[misc]  # likewise
    def commit(self) -> None:
        self._force_close()
        raise LOST


@pytest.mark.parametrize("kind", [_CommitsUnheard, _DiesBeforeCommit])
def test_a_lost_commit_is_done_once(shop: _Shop, kind: type) -> None:
    """If the answer to COMMIT is lost in a switch, the new shard tells whether it committed."""

    def dying() -> Any:
        shop.split()
        return shop.connect(kind)

    session = ShopSession(
        shop.directory(), {"80-": dying, "80-c0": shop.connect, "c0-": shop.connect}
    )
    done = session.commit(ORDER)
    session.close()

    assert shop.orders() == [1, 2]
    assert (done.rows, done.refusals) == (2, 1)
    assert done.shard in MOVED
    assert done.shard != "80-"


class _CommitsWithError(pymysql.Connection):  # type: ignore[misc]  # likewise
    def commit(self) -> None:
        super().commit()
        raise pymysql.err.OperationalError(1105, "Unknown error")


@pytest.mark.parametrize("kind", [_CommitsUnheard, _DiesBeforeCommit, _CommitsWithError])
def test_a_commit_in_doubt_is_counted_while_kafka_is_away(
    shop: _Shop, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are in the log: a writer that gave up would count nothing."""
    kinds = iter((kind, pymysql.Connection))
    directory = shop.directory()

    def look_again() -> None:
        raise NoBrokerAnswers("no broker answers")

    monkeypatch.setattr(directory, "look_again", look_again)
    session = ShopSession(directory, {"80-": lambda: shop.connect(next(kinds))})
    done = session.commit(ORDER)
    session.close()

    assert shop.orders() == [1, 2]
    assert (done.rows, done.refusals) == (2, 1)


def test_a_refused_write_goes_where_the_topology_leads(shop: _Shop) -> None:
    """A writer survives a locked account and a killed session."""
    opened: list[Any] = []

    def locked() -> Any:
        if opened:
            shop.split()
        opened.append(shop.connect(user=shop.account))
        return opened[-1]

    session = ShopSession(
        shop.directory(), {"80-": locked, "80-c0": shop.connect, "c0-": shop.connect}
    )
    session.commit(ORDER)
    shop.run(f"ALTER USER '{shop.account}'@'%' ACCOUNT LOCK")
    shop.run(f"KILL {opened[0].thread_id()}")
    later = replace(
        ORDER,
        statements=(("UPDATE orders SET id = id + 10 WHERE id = %s", [(1,)]),),
        done=("EXISTS(SELECT 1 FROM orders WHERE id = %s)", (11,)),
    )
    done = session.commit(later)
    session.close()

    assert shop.orders() == [2, 11]
    assert (done.rows, done.refusals) == (1, 2)
    assert done.shard != "80-"


def test_a_wrong_statement_is_raised(shop: _Shop) -> None:
    """An error of the statement itself is raised, not retried as a refusal."""
    session = ShopSession(shop.directory(), {"80-": shop.connect})

    with pytest.raises(pymysql.err.ProgrammingError):
        session.commit(replace(ORDER, statements=(("INSERT INTO nowhere VALUES (%s)", [(1,)]),)))
    session.close()
