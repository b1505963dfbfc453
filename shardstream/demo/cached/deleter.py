"""Delete on CDC: a reader of the change stream that deletes the entries of changed rows."""

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from event_token.errors import Halt, Retry
from shardstream.demo.cached.catalogue import SHARDING_COLUMNS, keys_of
from shardstream.demo.shop import DATABASE
from shardstream.subscriber import Subscriber
from topics.reading.unmerged import Unmerged

TABLES: Final = tuple(f"{DATABASE}.{table}" for table in SHARDING_COLUMNS)
STOP_S_MAX: Final = 30.0


class CdcDeleter:
    """Deletes the entries of each changed row, in a thread."""

    def __init__(
        self, settings_path: Path, keyspace: str, delete: Callable[[Iterable[str]], None]
    ) -> None:
        """Start nothing yet."""
        self._settings_path = settings_path
        self._keyspace = keyspace
        self._delete = delete
        self._events: Subscriber | None = None
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._began_us: int | None = None

    def start(self, back_s: int = 0) -> None:
        """Start, `back_s` seconds ago, or where it began at first if that is later."""
        now_us = time.time_ns() // 1_000
        start: int | str = "latest"
        if self._began_us is None:
            self._began_us = now_us
        elif back_s:
            start = max(self._began_us, now_us - back_s * 1_000_000)
        self._events = Subscriber.from_settings(
            self._settings_path, self._keyspace, start=start, mode=Unmerged(), tables=TABLES
        )
        self._thread = threading.Thread(target=self._run, args=(self._events,), daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what ended it."""
        if self._error is not None:
            raise self._error

    def kill(self) -> None:
        """End it."""
        if self._events is not None and self._thread is not None:
            self._events.close()
            self._thread.join(STOP_S_MAX)
            if self._thread.is_alive():
                raise Halt(f"the reader that deletes entries goes on after {STOP_S_MAX:.0f} s")
            self._events = self._thread = None

    def _run(self, events: Subscriber) -> None:
        try:
            while True:
                try:
                    for event in events:
                        for row in (event.before, event.after):
                            if row is not None:
                                self._delete(keys_of(int(str(row["product_id"]))))
                except Retry:
                    continue
                return
        except Exception as error:  # noqa: BLE001 - kept for check(), which raises it
            self._error = error
