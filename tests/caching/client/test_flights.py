"""R21: of many that miss one key at a time, one loads it."""

import asyncio
import itertools
import threading
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest

import caching
from caching.client.cache import AsyncFlights, Flights
from caching.client.options import CacheOptions
from credentials.per_process import PerProcess
from tests.caching.client.model import Model
from tests.caching.stores.opened import open_memory
from tests.forks import in_children
from tests.interrupts import Interrupt, SoftTimeLimit, lines_raised

CALLERS = 20
WAIT_S = 60


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


def test_a_forked_process_waits_for_no_thread_of_its_parent() -> None:
    """What a thread of the parent calls at the time of the fork is called again in the child."""
    flights = Flights[int]()
    began, may_end = threading.Event(), threading.Event()

    def call() -> int:
        began.set()
        assert may_end.wait(WAIT_S)
        return 1

    def share_in_child() -> None:
        assert flights.share("key", lambda: 2) == (2, False)

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(flights.share, "key", call)
        assert began.wait(WAIT_S)
        in_children(share_in_child)()
        may_end.set()
        assert found.result() == (1, False)


@pytest.mark.parametrize("error", [SoftTimeLimit, Interrupt])
def test_what_ends_a_call_leaves_nothing_to_wait_for(error: type[BaseException]) -> None:
    """Whichever line a signal handler raises at, the next caller calls."""
    flights = Flights[int]()

    def check() -> None:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(flights.share, "key", lambda: 2).result(WAIT_S) == (2, False)

    # Each in a context of its own, which forgets what a call is within.
    def call() -> None:
        copy_context().run(flights.share, "key", lambda: 1)

    assert lines_raised(call, check, error, caching) > 10


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

    for error in (ValueError("lost"), Interrupt()):
        began.clear()
        may_end.clear()
        leader = threading.Thread(target=lead, args=(error,))
        leader.start()
        assert began.wait(WAIT_S)
        with ThreadPoolExecutor(1) as pool:
            follower = pool.submit(flights.share, "key", lambda: "mine")
            may_end.set()
            if isinstance(error, Interrupt):
                assert follower.result(WAIT_S) == ("mine", False)
            elif follower.exception(WAIT_S) is None:  # it came after the other had ended
                assert follower.result() == ("mine", False)
        leader.join(WAIT_S)
    assert [type(error) for error in errors] == [ValueError, Interrupt]


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
