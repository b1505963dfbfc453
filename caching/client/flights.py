"""Single flight: of the callers that miss one key at a time, one loads it and the others share.

What a call is for includes the floor that its caller saw: a change that was applied meanwhile has
changed the floor, so nobody shares a load that began before it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from threading import Lock
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# The calls that this thread or task is within: one that asks for itself must not wait for itself.
_WITHIN: ContextVar[frozenset[Hashable]] = ContextVar("shardstream_within", default=frozenset())


class Flights(Generic[T]):
    """Calls under way in threads."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, Future[T]] = {}
        self._lock = Lock()

    def share(self, what: Hashable, call: Callable[[], T]) -> tuple[T, bool]:
        """Return what `call` returns or raises, and whether somebody else had called it.

        A call that ends by an interrupt is made again by one of those who waited.
        """
        if what in _WITHIN.get():
            return call(), False
        while True:
            mine: Future[T] = Future()
            with self._lock:
                found = self._calls.setdefault(what, mine)
            if found is mine:
                return self._lead(what, mine, call), False
            try:
                return found.result(), True
            except CancelledError:
                continue

    def _lead(self, what: Hashable, mine: Future[T], call: Callable[[], T]) -> T:
        before = _WITHIN.set(_WITHIN.get() | {what})
        try:
            result = call()
            mine.set_result(result)
        except Exception as error:
            mine.set_exception(error)
            raise
        finally:
            mine.cancel()  # only after an interrupt is it not done yet
            with self._lock:
                del self._calls[what]
            _WITHIN.reset(before)
        return result


class AsyncFlights(Generic[T]):
    """Calls under way in tasks of one event loop."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, asyncio.Task[T]] = {}

    async def share(
        self, what: Hashable, call: Callable[[], Coroutine[Any, Any, T]]
    ) -> tuple[T, bool]:
        """Return what `call` returns or raises, and whether somebody else had called it.

        The call goes on when the task that began it is cancelled: others may wait for it.
        """
        if what in _WITHIN.get():
            return await call(), False
        task, is_first = self._calls.get(what), False
        if task is None:
            before = _WITHIN.set(_WITHIN.get() | {what})
            task, is_first = asyncio.create_task(call()), True
            _WITHIN.reset(before)
            self._calls[what] = task
            task.add_done_callback(lambda done: self._end(what, done))
        return await asyncio.shield(task), not is_first

    def _end(self, what: Hashable, task: asyncio.Task[T]) -> None:
        del self._calls[what]
        if not task.cancelled():
            task.exception()  # read here, in case that nobody waits any more
