"""Looks into the topology now and then, beside a stream that must not wait for the answer."""

import threading
import time

from topics.kafka.client import ClientConfig
from topics.keyspace.topology import Topology, read_topology


class TopologyLook:
    """Reads the topology of a keyspace at most every `every_s`, each time in a thread of its own.

    A look takes tens of milliseconds, and half a second now and then: its client is a new one. A
    thread ends with its look, so there is nothing to close. Not thread-safe.
    """

    def __init__(self, config: ClientConfig, keyspace: str, every_s: float) -> None:
        """Begin nothing yet."""
        self._config = config
        self._keyspace = keyspace
        self._every_s = every_s
        self._due_s = time.monotonic() + every_s
        self._looking: threading.Thread | None = None
        self._found: Topology | None = None
        self._failure: BaseException | None = None

    def take(self) -> Topology | None:
        """Return what a look has found, once, and begin the next one when it is due.

        None when nothing is new, or nothing was written. Raises once what a look has raised.
        """
        if self._looking is None:
            self._begin_if_due()
            return None
        if self._looking.is_alive():
            return None
        self._looking = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self._found

    def _begin_if_due(self) -> None:
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + self._every_s
        name = f"topology of {self._keyspace}"
        self._looking = threading.Thread(target=self._look, name=name, daemon=True)
        self._looking.start()

    def _look(self) -> None:
        try:
            self._found = read_topology(self._config, self._keyspace)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that takes
            self._failure = error
