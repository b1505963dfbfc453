"""A port that another process took between choosing and binding."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from event_token import Halt
from shardstream.local import local_server
from shardstream.local.database_server import LocalAccount, MariadbServer
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.local_server import HOST, free_ports

pytestmark = pytest.mark.usefixtures("real_servers")


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which somebody else listens, without ever answering."""
    with socket.create_server((HOST, free_ports(1)[0])) as listener:
        yield int(listener.getsockname()[1])


@pytest.fixture
def mariadb(tmp_path: Path) -> Iterator[MariadbServer]:
    """A MariaDB server that has not been started."""
    server = MariadbServer(
        tmp_path / "server", server_id=1, account=LocalAccount("u", "p"), die_with_parent=True
    )
    yield server
    server.kill()


def _first(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first choice of ports begin with the taken one."""
    chosen: list[int] = []

    def choose(count: int) -> list[int]:
        first = not chosen
        chosen.extend([taken, *free_ports(count - 1)] if first else free_ports(count))
        return chosen[-count:]

    monkeypatch.setattr(local_server, "free_ports", choose)


@pytest.mark.full
def test_new_database_takes_another_port(
    mariadb: MariadbServer, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has never served chooses again."""
    _first(taken_port, monkeypatch)

    mariadb.start()

    assert mariadb.port != taken_port
    with mariadb.connect() as connection:
        assert connection.open


@pytest.mark.full
def test_known_port_is_never_given_up(mariadb: MariadbServer, taken_port: int) -> None:
    """Clients know the port of a server that has served: the start fails and shows the log."""
    mariadb.folder.mkdir()
    (mariadb.folder / "ports").write_text(f"{taken_port}\n")

    with pytest.raises(Halt, match="already in use"):
        mariadb.start()

    assert mariadb.port == taken_port
    assert mariadb.pid is None


@pytest.mark.full
def test_new_cluster_takes_other_ports(
    tmp_path: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that has never served chooses again."""
    _first(taken_port, monkeypatch)
    cluster = KafkaCluster(tmp_path / "kafka", die_with_parent=True)

    try:
        cluster.start()
        assert str(taken_port) not in cluster.bootstrap_servers
    finally:
        cluster.kill()
