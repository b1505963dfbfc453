"""Keeps the current state in processes that are killed before each of their writes.

The batches of one history are applied to `FOLDER/killed`. A batch is begun again and again, in a
process of its own, until it ends: each kills itself before its first write, then before its third
one, and so on. What an earlier one has committed is not written again, so those of every second
batch end before the first write of each kind instead. `FOLDER/whole` gets the same batches, each by
one process. A batch ends as Spark's do: the checkpoint says that it is done.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from event_token import StreamPosition
from sinks.lake.delta.storage import Storage
from sinks.lake.state import batch_commit
from sinks.lake.state.frontiers import Frontiers
from tests.sinks.lake.state.batch_queries import Query
from tests.sinks.rule.batches import Source, event_of
from tests.sinks.rule.histories import History
from tests.sinks.rule.late_rows import SourceRow, merged

SEED = 15
STEPS = 70
BATCH_ROWS = 14
# Enough for a file to have rows that stay, and a vector of the others.
KEYS = 24
# More than a batch of this history writes.
WRITES_MAX = 60
DATA, VECTORS, CHECKPOINT = "data file", "_vectors", "checkpoint"
# Kinds of writes in the order in which a batch comes to them.
KINDS = (DATA, VECTORS, "_delta_log", "_write", CHECKPOINT)
Point = int | str


def new_history() -> History:
    """The history that is applied."""
    found = History(Random(SEED), KEYS)
    found.run(STEPS)
    return found


@dataclass
class Life:
    """A process that ends before one of its writes: of this number, or the first of this kind.

    None: it lives.
    """

    point: Point | None
    log: Path
    written: int = 0

    def begin(self) -> None:
        """Look at all writes of this process."""
        for owner, name in (
            (Frontiers, "_create"),
            (Frontiers, "_write"),
            (batch_commit, "create_table"),
            (batch_commit, "add_columns"),
        ):
            setattr(owner, name, self._watched(name, getattr(owner, name)))
        for name in ("write", "create"):
            setattr(Storage, name, self._torn(getattr(Storage, name)))

    def write(self, what: str) -> None:
        """Be killed before this write, if it is its turn."""
        if self._is_turn(what):
            with self.log.open("a") as log:
                log.write(f"{what}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        self.written += 1

    def _is_turn(self, what: str) -> bool:
        return self.point in {what, self.written}

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any, **named: Any) -> Any:
            self.write(name)
            return real(*arguments, **named)

        return write

    def _torn(self, real: Callable[[Storage, str, bytes], Any]) -> Callable[..., Any]:
        """Leave half of the file, with the name that the store gives it until it is whole."""

        def write(storage: Storage, path: str, content: bytes) -> Any:
            what = path.partition("/")[0] if "/" in path else DATA
            if self._is_turn(what):
                half = Path(f"{storage.url}/{path}#1")
                half.parent.mkdir(parents=True, exist_ok=True)
                half.write_bytes(content[: len(content) // 2])
            self.write(what)
            return real(storage, path, content)

        return write


class Target:
    """A target and its checkpoint."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder / name
        self._checkpoint = folder / f"{name}.{CHECKPOINT}"

    def run(self, source: Source, batches: list[list[SourceRow]], life: Life) -> None:
        """Run the batch that comes next."""
        query = Query(self._folder, source, history=True)
        if self._checkpoint.exists():
            query.batch_id, position = json.loads(self._checkpoint.read_text())
            query.position = StreamPosition.from_string(position)
        query.run(batches[query.batch_id])
        life.write(CHECKPOINT)
        written = self._checkpoint.with_suffix(".new")
        written.write_text(json.dumps([query.batch_id, query.position.to_string()]))
        written.rename(self._checkpoint)


def in_a_process(run: Callable[[], None]) -> bool:
    """Run in a process of its own; return whether it has ended, False: it was killed."""
    child = os.fork()
    if not child:
        try:
            run()
        except BaseException:  # noqa: BLE001 - told, and the process ends
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in {0, -signal.SIGKILL}, f"exit status {status}"
    return status == 0


def main(folder: Path) -> None:
    """Fill both targets. Nothing here has threads, which a fork would lose."""
    source = Source()
    rows = source.rows(event_of(record) for record in merged(new_history().log))
    batches = [rows[at : at + BATCH_ROWS] for at in range(0, len(rows), BATCH_ROWS)]
    log = folder / "deaths"

    def live(name: str, point: Point | None) -> bool:
        life = Life(point, log)

        def run() -> None:
            life.begin()
            Target(folder, name).run(source, batches, life)

        return in_a_process(run)

    for number, _ in enumerate(batches):
        assert live("whole", None)
        # A batch that writes no file of a kind ends before the kinds that come later.
        some = [kind for kind in KINDS if kind != VECTORS or number % 4 == 1]
        points: Iterable[Point] = some if number % 2 else range(0, WRITES_MAX, 2)
        assert any(live("killed", point) for point in (*points, None))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
