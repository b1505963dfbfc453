"""A broker behind a proxy, shared by the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.faults.listeners import ListeningCluster


@pytest.fixture(scope="package")
def listening(
    real_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ListeningCluster]:
    """A Kafka broker that is also behind a proxy, and speaks TLS."""
    cluster = ListeningCluster(tmp_path_factory.mktemp("listening"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        cluster.proxy.close()


@pytest.fixture
def healed(listening: ListeningCluster) -> Iterator[ListeningCluster]:
    """The same; what a test does to its proxy ends with the test."""
    yield listening
    listening.proxy.heal()
    listening.proxy.reset()
