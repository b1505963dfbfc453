"""Watches, beside the stream, whether another server of the list should be followed."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from event_token import GtidSet, parse_gtid_set
from event_token.errors import ShardstreamError
from producers.errors import BetterServer
from producers.servers.choice import ServerView, find_faults, has_caught_up
from producers.servers.server_list import OpenServer, open_server, read_views
from producers.settings import ServerSettings, ShardProducerSettings
from topics.progress.record import LastTransaction

# Looks within `max_replica_lag_ms`; each look is a few statements per server.
LOOKS: Final = 4
LOOK_S_MAX: Final = 5.0
# The thread may be waiting for a server that does not answer; closing does not wait for that.
CLOSE_S_MAX: Final = 1.0


class LagMeter:
    """What other servers had executed, and when: how far the current one is behind them.

    Servers' clocks play no part: the current server lags by as long as it lacks what another one
    had.
    """

    def __init__(self, lag_s_max: float) -> None:
        self._lag_s_max = lag_s_max
        self._seen: deque[tuple[float, str, GtidSet]] = deque(maxlen=1_000)

    def note(self, now_s: float, server: str, executed: GtidSet) -> None:
        """Remember that another server, which could be followed, has executed this."""
        self._seen.append((now_s, server, executed))

    def lagging_behind(self, now_s: float, executed: GtidSet) -> str:
        """The server that has long had what is not in `executed` yet; "" if there is none."""
        kept = [seen for seen in self._seen if not has_caught_up(executed, seen[2])]
        self._seen = deque(kept, maxlen=self._seen.maxlen)
        late = (server for seen_s, server, _ in kept if now_s - seen_s > self._lag_s_max)
        return next(late, "")


class ServerWatch:
    """A thread that watches all servers; `check` raises when the current one should be left.

    `position` returns what is committed on the log, `lasts` its last transactions. Servers that do
    not answer are asked again.
    """

    def __init__(
        self,
        settings: ShardProducerSettings,
        current: ServerSettings,
        position: Callable[[], str],
        lasts: Callable[[], Sequence[LastTransaction]],
    ) -> None:
        """Start the thread if there is more than one server."""
        self._reason = ""
        self._error: Exception | None = None
        self._settings = settings
        self._current = current.name
        self._position = position
        self._lasts = lasts
        self._lag_s_max = settings.max_replica_lag_ms / 1000
        self._lag_meter = LagMeter(self._lag_s_max)
        self._open: dict[str, OpenServer] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server watch", daemon=True)
        if len(settings.servers) > 1:
            self._thread.start()

    def check(self) -> None:
        """Raise BetterServer, with the reason, when another server should be chosen."""
        if self._error is not None:
            raise self._error
        if self._reason:
            raise BetterServer(self._reason)

    def close(self) -> None:
        """Ask the thread to end and wait briefly."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S_MAX)

    def _run(self) -> None:
        period_s = min(LOOK_S_MAX, self._lag_s_max / LOOKS)
        try:
            while not self._reason and not self._ending.wait(period_s):
                self._reason = self._look()
        except Exception as error:  # noqa: BLE001 - `check` raises it in the session
            self._error = error
        finally:
            for server in self._open.values():
                server.close()

    def _look(self) -> str:
        position = parse_gtid_set(self._position(), self._settings.flavor)
        views = self._views()
        faults = find_faults(self._settings.shard_topics, position, views, self._lasts())
        if self._current in faults:
            return str(faults[self._current])
        now_s = time.monotonic()
        behind = ""
        for view in views:
            if view.name == self._current:
                behind = self._lag_meter.lagging_behind(now_s, view.history.executed)
        sound = {s.name for s in self._settings.servers if s.read} - faults.keys()
        for view in views:
            if view.name != self._current and view.name in sound:
                self._lag_meter.note(now_s, view.name, view.history.executed)
        if behind in sound and any(view.name == behind for view in views):
            return (
                f"{self._current} lacks what {behind} had {self._lag_s_max:g} s ago "
                "(max_replica_lag_ms): following the latter"
            )
        return ""

    def _views(self) -> list[ServerView]:
        """Read the servers that answer."""
        for settings in self._settings.servers:
            if settings.name not in self._open:
                with suppress(ShardstreamError):  # A server that does not answer is not better.
                    self._open[settings.name] = open_server(settings, self._settings)
        return read_views(list(self._open.values()), self._forget)

    def _forget(self, server: OpenServer, _fault: ShardstreamError) -> None:
        """Drop the connection; the next look reconnects."""
        server.close()
        self._open.pop(server.name, None)
