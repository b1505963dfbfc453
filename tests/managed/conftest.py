"""Brokers of each service."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.managed.kafka_services import SERVICES, ManagedCluster, jars_with_policy, started


@pytest.fixture(scope="module")
def jars(real_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kafka's jars with the policy."""
    return jars_with_policy(tmp_path_factory.mktemp("managed") / "jars")


@pytest.fixture(scope="module")
def service(
    request: pytest.FixtureRequest, jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, ManagedCluster]]:
    """A service, by its name; tests of a file that ask for the same one share it."""
    folder = tmp_path_factory.mktemp(request.param) / "kafka"
    for cluster in started(folder, jars, SERVICES[request.param]):
        yield request.param, cluster


@pytest.fixture
def msk(jars: Path, tmp_path: Path) -> Iterator[ManagedCluster]:
    """MSK Serverless."""
    yield from started(tmp_path / "kafka", jars, SERVICES["msk-serverless"])
