"""Real servers for all tests: started on demand, shared by the session, killed with pytest."""

import os
import secrets
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from producers.servers.identity import write_identity
from shardstream.local.database_server import (
    NOT_DURABLE,
    LocalDatabase,
    MariadbServer,
    MysqlServer,
)
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.postgres_server import NOT_DURABLE as POSTGRES_NOT_DURABLE
from shardstream.local.postgres_server import PostgresServer
from tests.database_servers import DatabaseFixture, StartServer, end, own_account, running
from tests.ecosystem.docker_commands import PROGRAM_VARIABLE
from tests.java_options import options_of_tests
from tests.managed import results
from tests.postgres_servers import PostgresFixture, running_postgres
from tests.scheduling import LongestFirst, rank, unit

# The tests of `make test-ecosystem`, which needs more of the machine than `make test` may ask for.
collect_ignore = [] if PROGRAM_VARIABLE in os.environ else ["ecosystem"]

# Distinct ids, none of which a producer under test would choose.
SERVER_IDS = {"mysql_a": 9001, "mysql_b": 9002, "mariadb_a": 9003}

# Hundreds of commands are started: where this is set, each would compile all of its modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# On a busy machine an example takes any time.
# Each run generates other examples: half of Hypothesis's default a time take half the time.
settings.register_profile(
    "tests",
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")
# For `make quick`; all other runs generate twice as many.
settings.register_profile("quick", max_examples=25)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need servers, wherever in their fixtures they start; longest first."""
    for item in items:
        if isinstance(item, pytest.Function) and "real_servers" in item.fixturenames:
            item.add_marker(pytest.mark.servers)
    items.sort(key=lambda item: rank(item.nodeid))


# Clusters that end where the worker goes on with another unit of tests (`kafka3`).
_UNIT_CLUSTERS = pytest.StashKey[list[KafkaCluster]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """End what only the tests of one unit share."""
    yield
    if nextitem is None or unit(nextitem.nodeid) != unit(item.nodeid):
        for cluster in item.session.stash.get(_UNIT_CLUSTERS, ()):
            cluster.kill()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what profiles of managed services have measured."""
    for line in results.lines(terminalreporter.getreports("passed")):
        terminalreporter.write_line(line)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LongestFirst:
    """Share the tests out by units, in the order of the collection."""
    config.option.loadscopereorder = False
    return LongestFirst(config, log)


@pytest.fixture(scope="session")
def real_servers(pytestconfig: pytest.Config) -> Iterator[None]:
    """Request this wherever a server or a JVM is started: `make quick` leaves those tests out."""
    if "not servers" in pytestconfig.option.markexpr:
        pytest.fail("a test that starts a server must request `real_servers` by name")
    with pytest.MonkeyPatch.context() as patch:
        for name, options in options_of_tests().items():
            patch.setenv(name, options)
        # A Python of Spark's that dies of a signal prints where it was.
        patch.setenv("PYTHONFAULTHANDLER", "1")
        yield


def _shared(
    kind: type[LocalDatabase], name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DatabaseFixture]:
    yield from running(
        kind(
            tmp_path_factory.mktemp(name),
            server_id=SERVER_IDS[name],
            account=own_account(),
            extra_args=NOT_DURABLE,
            die_with_parent=True,
        )
    )


@pytest.fixture(scope="session")
def mysql_a(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DatabaseFixture]:
    """A MySQL server."""
    yield from _shared(MysqlServer, "mysql_a", tmp_path_factory)


@pytest.fixture(scope="session")
def mysql_b(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DatabaseFixture]:
    """A second MySQL server."""
    yield from _shared(MysqlServer, "mysql_b", tmp_path_factory)


@pytest.fixture(scope="session")
def mariadb_a(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DatabaseFixture]:
    """A MariaDB server. It has its identity, so that no test's log begins by writing it."""
    for database in _shared(MariadbServer, "mariadb_a", tmp_path_factory):
        with database.connect() as connection:
            write_identity(connection)
        yield database


@pytest.fixture(params=["mysql_a", "mariadb_a"])
def database(real_servers: None, request: pytest.FixtureRequest) -> DatabaseFixture:
    """A server of each family in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, DatabaseFixture)
    return found


@pytest.fixture
def start_mysql(real_servers: None, tmp_path: Path) -> Iterator[StartServer]:
    """Start MySQL servers with the test's own settings; they end with the test."""
    started: list[LocalDatabase] = []
    yield StartServer(MysqlServer, tmp_path, started)
    for server in started:
        end(server)


@pytest.fixture
def start_mariadb(real_servers: None, tmp_path: Path) -> Iterator[StartServer]:
    """Start MariaDB servers with the test's own settings; they end with the test."""
    started: list[LocalDatabase] = []
    yield StartServer(MariadbServer, tmp_path, started)
    for server in started:
        end(server)


@pytest.fixture(scope="session")
def postgres(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PostgresFixture]:
    """A PostgreSQL server."""
    server = PostgresServer(
        tmp_path_factory.mktemp("postgres"),
        password=secrets.token_hex(8),
        extra_args=POSTGRES_NOT_DURABLE,
        die_with_parent=True,
    )
    yield from running_postgres(server)


@pytest.fixture(scope="session")
def kafka(real_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A Kafka broker."""
    cluster = KafkaCluster(tmp_path_factory.mktemp("kafka1"), die_with_parent=True)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture(scope="session")
def _three_brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(tmp_path_factory.mktemp("kafka3"), brokers=3, die_with_parent=True)
    request.session.stash.setdefault(_UNIT_CLUSTERS, []).append(cluster)
    yield cluster
    cluster.kill()


@pytest.fixture(scope="module")
def kafka3(real_servers: None, _three_brokers: KafkaCluster) -> KafkaCluster:
    """Three Kafka brokers with replication; a test that stops one starts it again.

    Idle they take a ninth of a processor: they end with their unit, and start where they have.
    """
    _three_brokers.start()
    return _three_brokers


@pytest.fixture
def keyspace() -> str:
    """A keyspace name that no other test uses, so that its topics are not shared."""
    return f"ks{secrets.token_hex(4)}"
