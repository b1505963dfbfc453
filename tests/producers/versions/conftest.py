"""The server that a module of tests names as its SERVER, and the cases for it."""

from collections.abc import Iterator

import pytest

from tests.database_servers import DatabaseFixture
from tests.producers.copy.copied_rows import leaves_rows
from tests.producers.decoder.case_files import Case, cases_for
from tests.producers.own_servers import OwnServers
from tests.producers.versions.other_servers import are_to_be_had

# Where these servers cannot run there are no tests of them.
collect_ignore_glob = [] if are_to_be_had() else ["test_*.py"]
SEEDS = range(4)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test the cases that the module's server can run."""
    version = metafunc.module.VERSION
    cases = [c for c in cases_for(metafunc.module.SERVER.flavor, version) if c.since <= version]
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", cases, ids=str)
    if "copied_case" in metafunc.fixturenames:
        metafunc.parametrize("copied_case", [case for case in cases if leaves_rows(case)], ids=str)
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", SEEDS)


@pytest.fixture(scope="module")
def own_servers(
    real_servers: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OwnServers]:
    """The module's server, with each set of options that its cases ask for."""
    kind = request.module.SERVER
    servers = OwnServers(tmp_path_factory.mktemp(kind.__name__), {kind.flavor: kind})
    yield servers
    servers.end()


@pytest.fixture
def server(own_servers: OwnServers, request: pytest.FixtureRequest) -> DatabaseFixture:
    """The module's server, without options."""
    return own_servers.with_options(request.module.SERVER.flavor, ())


@pytest.fixture
def server_of_case(case: Case, own_servers: OwnServers) -> DatabaseFixture:
    """The module's server, with the options of the case."""
    return own_servers.with_options(case.flavor, case.server_options)
