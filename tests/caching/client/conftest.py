"""The model of a cached keyspace."""

from collections.abc import Callable

import pytest

from tests.caching.client.model import Model
from tests.caching.stores.opened import Opened, open_memory

# One of each kind: that the others behave alike is shown by the tests of stores.
ON_SERVERS = (pytest.param(name, marks=pytest.mark.servers) for name in ("redis", "memcached"))


@pytest.fixture
def model() -> Model:
    """A model on a store in memory."""
    return Model(open_memory())


@pytest.fixture(params=["memory", *ON_SERVERS])
def any_model(request: pytest.FixtureRequest, open_kind: Callable[[str], Opened]) -> Model:
    """A model on each kind of store in turn."""
    return Model(open_kind(request.param))
