"""The model of a cached keyspace."""

import pytest

from tests.caching.client.model import Model
from tests.caching.stores.opened import Opened, open_memory


@pytest.fixture
def model() -> Model:
    """A model on a store in memory."""
    return Model(open_memory())


@pytest.fixture
def any_model(opened: Opened) -> Model:
    """A model on each store in turn."""
    return Model(opened)
