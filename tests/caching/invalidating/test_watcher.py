"""A watcher beside a real invalidator, on every kind of store."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from caching import watcher
from caching.invalidating.log import LogStream, StartAt
from caching.watcher import Watcher, WatchOptions, WatchStatus
from event_token import ClockUncertainty, KeyRange, UsageError
from tests.caching.invalidating.invalidating import KEYS, Client, invalidating, on_each_store
from tests.caching.stores.opened import Opened
from tests.producers.session.producing import Running
from tests.topics.shard_writer import Writers
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig
from topics.schemas import open_schema_ids

# Longer than any test takes: no look is due until the test says so.
SOON_S, LATE_S = 10_000, 60_000


class RunningWatcher(Running):
    """A watcher in a thread, whose clock the test moves on, with what it has told."""

    def __init__(self, config: ClientConfig, keyspace: str, cache: Opened) -> None:
        self.told: list[WatchStatus] = []
        self.ahead_s = 0.0
        schema_ids = open_schema_ids(config, None)
        stream = LogStream(keyspace, KeyRange.parse("-"), config, schema_ids, ClockUncertainty())
        options = WatchOptions(
            1, StartAt.STORED, (SOON_S, LATE_S), lambda: time.monotonic() + self.ahead_s
        )
        watching = Watcher(stream, KEYS, cache.raw, options, self.told.append)
        super().__init__("the watcher", watching.run)
        self.wait("it reads the log", lambda last: last.behind_s is not None)

    def wait(self, what: str, condition: Callable[[WatchStatus], bool]) -> WatchStatus:
        """Wait for a status, and return it."""

        def is_met() -> bool:
            self.check()
            return bool(self.told) and condition(self.told[-1])

        wait_for(what, is_met)
        return self.told[-1]

    def wait_tally(self, age_s: int, **counts: int) -> None:
        """Wait until looks at this age have found this."""
        expected = {"absent": 0, "agrees": 0, "stale": 0, "unknown": 0, **counts}

        def is_found(last: WatchStatus) -> bool:
            return expected.items() <= last.within[str(age_s)].items()

        self.wait(f"{expected} after {age_s} s", is_found)


@contextmanager
def watching(config: ClientConfig, keyspace: str, cache: Opened) -> Iterator[RunningWatcher]:
    """A watcher of all keys from the stored position on; it is stopped at the end."""
    running = RunningWatcher(config, keyspace, cache)
    try:
        yield running
    finally:
        running.end()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports come often."""
    monkeypatch.setattr(watcher, "REPORT_S", 0.1)


@pytest.mark.full
@on_each_store
def test_it_finds_an_entry_that_was_spoiled(
    config: ClientConfig, keyspace: str, writers: Writers, cache: Opened, client: Client
) -> None:
    """All entries agree after changes; one that is made older by hand is found and named."""
    (writer,) = writers("-")
    writer.commit((0, 1))
    old = writer.written[0].token
    with invalidating(config, keyspace, cache.more_floors):
        client.make_floors("order:2", "order:3", "order:4")
        with watching(config, keyspace, cache) as running:
            writer.commit((1_000, 1), (2_000, 1), (3_000, 1))
            client.wait_applied(*writer.written[1:])
            new = writer.written[-1].token
            # On memcached a fill loses to the removal that follows the raised floor.
            for key in ("order:2", "order:3"):
                wait_for("it is filled", lambda key=key: client.fill(key, new))  # type: ignore[misc]
            running.wait("it reads the changes", lambda last: last.sampled == 3)
            running.ahead_s = SOON_S
            running.wait_tally(SOON_S, agrees=2, absent=1)
            assert running.told[-1].within[str(SOON_S)]["share"] == 1.0
            assert not any(" is stale: " in status.note for status in running.told)

            cache.put("order:3", client.floor("order:3").generation, old)
            running.ahead_s = LATE_S
            running.wait_tally(LATE_S, agrees=1, stale=1, absent=1)
            assert running.told[-1].within[str(LATE_S)]["share"] == 0.5
            [note] = [each.note for each in running.told if " is stale: " in each.note]
            assert note.startswith(f"order:3 is stale: {LATE_S} s after a change of shard -")


@pytest.mark.full
def test_it_sees_that_nobody_invalidates(
    config: ClientConfig, keyspace: str, writers: Writers, cache: Opened, client: Client
) -> None:
    """Entries whose changes nobody applies are stale, and the watcher changes nothing of it."""
    (writer,) = writers("-")
    writer.commit((0, 1))
    with invalidating(config, keyspace, cache.more_floors):
        client.make_floors("order:2")
        assert client.fill("order:2", writer.written[0].token)
    with watching(config, keyspace, cache) as running:
        writer.commit((1_000, 1))
        running.wait("it reads the change", lambda last: last.sampled == 1)
        running.ahead_s = LATE_S
        running.wait_tally(SOON_S, stale=1)
        running.wait_tally(LATE_S, stale=1)
        assert client.hit("order:2")


@pytest.mark.parametrize("rate", [0, -1, 1.1, float("nan")])
def test_rates_that_are_none(rate: float) -> None:
    """A rate is a share."""
    with pytest.raises(UsageError, match="a share of all keys"):
        WatchOptions(rate)
