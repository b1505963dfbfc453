"""A store in the memory of one process, which invalidates it in a dedicated thread.

A child process that is forked has no such thread: it begins without floors, so nothing is a hit or
is stored there. Make the cache after the fork.
"""

import asyncio
import logging
import os
import threading
import weakref
from functools import partial
from typing import Final

from caching.invalidating.invalidator import Invalidator, InvalidatorOptions, InvalidatorStatus
from caching.invalidating.log import LogStream
from caching.key_map import KeyMap
from caching.protocol import CacheLayout
from caching.steps import Call, Steps
from caching.stores.memory import MemoryFloors, MemoryStore
from event_token.errors import ShardstreamError

LOG: Final = logging.getLogger(__name__)
# A call to Kafka that does not answer; the thread ends with the process.
CLOSE_S: Final = 10.0


class ProcessStore(MemoryStore):
    """A `MemoryStore` with its invalidator, from `start` until `close`.

    An invalidator that ends by an error is logged, and no longer moves its position: the cache is
    behind then, and `on_behind` decides.
    """

    def __init__(
        self,
        layout: CacheLayout,
        stream: LogStream,
        keys: KeyMap,
        options: InvalidatorOptions,
        *,
        is_async: bool,
        stale_ok_s: int = 0,
    ) -> None:
        """Start nothing yet. `options`: without a lease, for nobody else is there."""
        super().__init__(layout, stale_ok_s=stale_ok_s, clock_uncertainty=stream.clock)
        self.is_async = is_async
        os.register_at_fork(after_in_child=partial(_forget, weakref.ref(self)))
        self._said = ""
        self._stop = threading.Event()
        self._invalidator = Invalidator(
            stream, keys, lambda: MemoryFloors(self), options, self._report
        )
        self._thread = threading.Thread(
            target=self._run, name=f"invalidator of {layout.cache}", daemon=True
        )

    def start(self) -> None:
        """Begin to invalidate, at the ends of the logs."""
        self._thread.start()

    def close(self) -> Steps[None]:
        """End the invalidator."""
        self._stop.set()
        if self._thread.is_alive():
            join = partial(self._thread.join, CLOSE_S)
            yield Call(asyncio.to_thread, (join,)) if self.is_async else Call(join)

    def _run(self) -> None:
        try:
            self._invalidator.run(self._stop)
        except ShardstreamError as error:
            halt = error
        else:
            return
        LOG.error("cache %s is no longer invalidated: %s", self.layout.cache, halt)

    def _report(self, status: InvalidatorStatus) -> None:
        if status.note and status.note != self._said:
            self._said = status.note
            LOG.warning("cache %s: %s, %s", self.layout.cache, status.state, status.note)


def _forget(store: "weakref.ref[ProcessStore]") -> None:
    found = store()
    if found is not None:
        found.lock = threading.RLock()  # of a thread that is not here
        for node in found.memory.values():
            node.flush()
