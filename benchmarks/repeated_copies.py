"""Copies one table repeatedly, so that a concurrent writer can be observed for long enough."""

import threading
import time
from typing import Final, Self

from event_token.errors import Halt
from topics.kafka.client import ClientConfig
from topics.names import ShardTopics
from topics.progress.copy_topic import (
    CopyAction,
    CopyFeed,
    CopyRequest,
    CopyState,
    TableCopy,
    ask_and_wait,
)

ANSWER_S_MAX: Final = 60.0
POLL_S: Final = 0.1


class RepeatedCopies:
    """Copies `table` while the block runs; afterwards `rows_per_s` is the rate."""

    def __init__(self, config: ClientConfig, topics: ShardTopics, table: str) -> None:
        """`table`: as database.table."""
        self.rows_per_s = 0.0
        self._config = config
        self._topics = topics
        self._table = table
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None
        self._rows = 0
        self._began_s = 0.0

    def __enter__(self) -> Self:
        self._ask()
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(ANSWER_S_MAX)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with CopyFeed(self._config, self._topics) as feed:
                feed.read_to_end()
                while not self._stop.is_set():
                    feed.poll(POLL_S)
                    copy = self._copy(feed)
                    if copy.state is CopyState.COMPLETED:
                        self._rows += copy.rows
                        self._ask()
                        self._wait_begun(feed, copy)
                feed.poll(0)
                self._rows += self._copy(feed).rows
                self.rows_per_s = self._rows / (time.monotonic() - self._began_s)
        except BaseException as error:  # noqa: BLE001 - raised by the block's end
            self._error = error

    def _copy(self, feed: CopyFeed) -> TableCopy:
        [copy] = (copy for copy in feed.tables.values() if copy.name == self._table)
        if copy.state is CopyState.FAILED:
            raise Halt(copy.note)
        return copy

    def _wait_begun(self, feed: CopyFeed, before: TableCopy) -> None:
        while self._copy(feed).copy_id == before.copy_id and not self._stop.is_set():
            feed.poll(POLL_S)

    def _ask(self) -> None:
        request = CopyRequest(CopyAction.START, (self._table,))
        answer = ask_and_wait(self._config, self._topics, request, ANSWER_S_MAX)
        if answer.problems:
            raise Halt("; ".join(answer.problems))
