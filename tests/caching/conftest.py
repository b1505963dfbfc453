"""Every store in turn."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.caching.stores.opened import Opened, open_async_memory, open_memory

OPENERS: dict[str, Callable[[], Opened]] = {
    "memory": open_memory,
    "memory-async": partial(open_async_memory, in_threads=False),
    "memory-threads": partial(open_async_memory, in_threads=True),
}


@pytest.fixture(params=OPENERS)
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    """A store of each kind in turn."""
    found = OPENERS[request.param]()
    yield found
    found.floors.close()
    found.store.close()
