"""Sends statements to the target in a thread of its own, beside the decoding of the next ones."""

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from event_token import StreamPosition
from resharding.apply.statements import Statement
from resharding.apply.target_session import TargetSession

# Lots that wait while another is sent: with more, memory would hold more of them for nothing.
LOTS_MAX: Final = 1


@dataclass(frozen=True, slots=True)
class Lot:
    """Statements of a target transaction; `position` of the sources where it ends with them.

    `rows`: changes of the sources in the whole transaction.
    """

    statements: Sequence[Statement]
    position: StreamPosition | None = None
    rows: int = 0


class Sender:
    """Sends lots in their order. After an error nothing more is sent: `send` and `drain` raise it.

    Others may use the session after `drain`, until they send again.
    """

    def __init__(self, target: TargetSession) -> None:
        """Start the thread."""
        self.has_committed = False
        self._target = target
        self._lots: queue.Queue[Lot | None] = queue.Queue(LOTS_MAX)
        self._committed: queue.SimpleQueue[Lot] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="sender", daemon=True)
        self._thread.start()

    def send(self, lot: Lot) -> None:
        """Hand over a lot; wait while another waits."""
        self.check()
        self._lots.put(lot)

    def drain(self) -> None:
        """Wait until everything is sent and answered."""
        self._lots.join()
        self.check()

    @property
    def is_idle(self) -> bool:
        """Whether everything is sent and answered, without an error."""
        return self._lots.unfinished_tasks == 0 and self._error is None

    def check(self) -> None:
        """Raise the error that has ended the sending."""
        if self._error is not None:
            raise self._error

    def committed(self) -> list[Lot]:
        """The lots that ended a transaction and were committed since the last call."""
        return [self._committed.get() for _ in range(self._committed.qsize())]

    def close(self) -> None:
        """End the thread after what it has been given: it may be in the midst of a commit."""
        self._lots.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (lot := self._lots.get()) is not None:
            try:
                if self._error is None:
                    self._send(lot)
            except BaseException as error:  # noqa: BLE001 - raised in the thread that sends
                self._error = error
            finally:
                self._lots.task_done()

    def _send(self, lot: Lot) -> None:
        self._target.run(lot.statements)
        if lot.position is None:
            return
        self._target.check_primary()
        self._target.commit()
        self.has_committed = True
        self._committed.put(lot)
