"""Watches, beside the stream, how far back the binlogs of a session's server reach."""

import threading
from contextlib import closing
from typing import Final

from databases.connection import open_connection
from databases.platforms import read_retention, recognise
from databases.server_facts import ServerFacts, binlog_files
from event_token.errors import ShardstreamError
from producers.replication.gtid_scan import read_begin_us
from producers.replication.stream import ReplicationStream, server_errors
from producers.session.context import ProducerCounters
from producers.settings import ServerSettings, ShardProducerSettings

# Binlogs are kept for hours. A look opens one connection, and another when the oldest is purged.
LOOK_S: Final = 60.0
# The thread may be waiting for a server that does not answer; closing does not wait for that.
CLOSE_S_MAX: Final = 1.0


class BinlogWatch:
    """A thread that keeps `binlog_kept_s` and `oldest_binlog_us` of the counters.

    Both are None while the server does not say them, so that nobody relies on old figures.
    """

    def __init__(
        self,
        settings: ShardProducerSettings,
        server: ServerSettings,
        family: ServerFacts,
        counters: ProducerCounters,
    ) -> None:
        """Start the thread."""
        self._platform = settings.platform
        self._server = server
        self._family = family
        self._counters = counters
        self._oldest = ""
        self._error: Exception | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="binlog watch", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what has ended the thread, which no fault of a server does."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ask the thread to end and wait briefly."""
        self._ending.set()
        self._thread.join(CLOSE_S_MAX)

    def _run(self) -> None:
        try:
            while True:
                try:
                    self._look()
                except ShardstreamError:  # Preflight says what is refused; the stream, what is lost
                    self._note(None, None)
                if self._ending.wait(LOOK_S):
                    return
        except Exception as error:  # noqa: BLE001 - `check` raises it in the session
            self._error = error

    def _look(self) -> None:
        with (
            closing(open_connection(self._server)) as connection,
            server_errors(self._server, "asking how far back binlogs reach on"),
        ):
            platform = self._platform or recognise(connection)
            kept_s = read_retention(connection, platform).kept_s
            self._note(kept_s, self._counters.oldest_binlog_us)
            files = binlog_files(connection)
        if not files:  # A service may hide them.
            self._note(kept_s, None)
            return
        oldest = files[0]
        if oldest == self._oldest:
            return
        with closing(ReplicationStream.open_file(self._server, self._family, oldest)) as stream:
            begin_us = read_begin_us(stream, f"{oldest} of {self._server.name}")
        self._oldest = oldest
        self._note(kept_s, begin_us)

    def _note(self, kept_s: int | None, oldest_us: int | None) -> None:
        if self._ending.is_set():
            return  # The counters may be those of another session by now.
        if oldest_us is None:
            self._oldest = ""
        self._counters.binlog_kept_s = kept_s
        self._counters.oldest_binlog_us = oldest_us
