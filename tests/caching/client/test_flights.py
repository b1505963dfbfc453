"""R21: of many that miss one key at a time, one loads it."""

import asyncio
import itertools
import threading
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from caching.client.cache import AsyncFlights, Flights
from caching.client.options import CacheOptions
from credentials.per_process import PerProcess
from tests.caching.client.model import Model
from tests.caching.stores.opened import open_memory

CALLERS = 20
WAIT_S = 60


class Interrupted(BaseException):
    """As KeyboardInterrupt, which pytest would take for one of its own."""


class Callers(dict[Hashable, Any]):
    """The calls under way; knows when all callers have found theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.all_have_asked = threading.Event()
        self._asked = itertools.count(1)

    def setdefault(self, what: Hashable, mine: Any = None) -> Any:
        found = super().setdefault(what, mine)
        if next(self._asked) == CALLERS:
            self.all_have_asked.set()
        return found


def test_one_of_many_threads_calls() -> None:
    """R21: the others get its result; what has ended is called again."""
    flights = Flights[int]()
    callers = Callers()
    flights._calls = PerProcess[dict[Hashable, Any]](lambda: callers)

    def call() -> int:
        assert callers.all_have_asked.wait(WAIT_S)
        return 7

    with ThreadPoolExecutor(CALLERS) as pool:
        answers = list(pool.map(lambda _: flights.share("key", call), range(CALLERS)))

    assert sorted(answers) == [(7, False), *[(7, True)] * (CALLERS - 1)]
    assert [flights.share("key", lambda: 1), flights.share("key", lambda: 2)] == [
        (1, False),
        (2, False),
    ]


def test_those_who_wait_get_the_error_but_no_interrupt() -> None:
    """An error is everybody's; after an interrupt one of the others calls."""
    flights = Flights[str]()
    began, may_end = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def lead(error: BaseException) -> None:
        def call() -> str:
            began.set()
            assert may_end.wait(WAIT_S)
            raise error

        try:
            flights.share("key", call)
        except BaseException as raised:  # noqa: BLE001 - checked below
            errors.append(raised)

    for error in (ValueError("lost"), Interrupted()):
        began.clear()
        may_end.clear()
        leader = threading.Thread(target=lead, args=(error,))
        leader.start()
        assert began.wait(WAIT_S)
        with ThreadPoolExecutor(1) as pool:
            follower = pool.submit(flights.share, "key", lambda: "mine")
            may_end.set()
            if isinstance(error, Interrupted):
                assert follower.result(WAIT_S) == ("mine", False)
            elif follower.exception(WAIT_S) is None:  # it came after the other had ended
                assert follower.result() == ("mine", False)
        leader.join(WAIT_S)
    assert [type(error) for error in errors] == [ValueError, Interrupted]


def test_a_call_within_itself_does_not_wait_for_itself() -> None:
    """A loader that asks for its own key would wait for ever."""
    flights = Flights[int]()

    assert flights.share("key", lambda: flights.share("key", lambda: 3)[0]) == (3, False)

    async def run() -> tuple[int, bool]:
        flights = AsyncFlights[int]()

        async def inner() -> int:
            return 3

        async def outer() -> int:
            return (await flights.share("key", inner))[0]

        return await flights.share("key", outer)

    assert asyncio.run(run()) == (3, False)


def test_a_cancelled_task_does_not_end_the_others_load() -> None:
    """The call goes on for those who wait for it."""

    async def run() -> tuple[int, bool]:
        flights = AsyncFlights[int]()
        may_end, began = asyncio.Event(), asyncio.Event()

        async def call() -> int:
            began.set()
            await may_end.wait()
            return 5

        first = asyncio.create_task(flights.share("key", call))
        await began.wait()
        second = asyncio.create_task(flights.share("key", call))
        await asyncio.sleep(0)
        first.cancel()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await second

    assert asyncio.run(run()) == (5, True)


def test_many_clients_of_many_processes_load_once() -> None:
    """R21: one of them gets the lease of the slot, the others wait for its value."""
    model = Model(open_memory(), CacheOptions(lease_ms=10_000))
    caches = [model.cache() for _ in range(CALLERS)]
    barrier = threading.Barrier(CALLERS)

    def get(number: int) -> object:
        barrier.wait(WAIT_S)
        return model.get(caches[number], "r20")

    with ThreadPoolExecutor(CALLERS) as pool:
        assert list(pool.map(get, range(CALLERS))) == [{"r20": 1}] * CALLERS

    assert model.queries() == 1
