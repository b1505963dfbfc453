"""The live split of the demo: the commands that an operator would run."""

import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

from event_token.errors import Halt
from shardstream.demo.watch import ProgressWatch
from shardstream.demo.workers import Worker, Workers
from shardstream.local.database_server import DatabaseServer
from topics.progress.copy_topic import CopyFeed, CopyState, TableCopy

SOURCE: Final = "80-"
TARGETS: Final = ("80-c0", "c0-")
RESHARD_ID: Final = "split"
# About 15 s if the demo has the machine to itself.
SPLIT_S_MAX: Final = 300.0
# On a busy machine a target may lag at the moment of the switch, which then changes nothing.
TRIES_MAX: Final = 5
# Closer than the switch requires, so that its first attempt usually succeeds.
FOLLOW_MS: Final = 2_000

# One step, called repeatedly until it is done; returns the command that did it.
Steps = Generator[str, None, Worker]


class Split:
    """Splits `80-` into `80-c0` and `c0-`; `doing` is the current step, for the screen.

    `go_on` takes the next step and never blocks.
    """

    def __init__(
        self,
        keyspace: str,
        workers: Workers,
        watch: ProgressWatch,
        *,
        copies: CopyFeed,
        server: DatabaseServer,
        report: Callable[[str], None],
    ) -> None:
        """Do nothing yet. `copies`, `server`: of the source."""
        self.doing = ""
        self._keyspace = keyspace
        self._workers = workers
        self._watch = watch
        self._copies = copies
        self._server = server
        self._report = report
        self._steps = self._all_steps()
        self._deadline_s: float | None = None
        self._stopped = ""

    def go_on(self) -> bool:
        """Do what can be done now; return whether the split is complete. Halt if a step fails."""
        now_s = time.monotonic()
        self._deadline_s = self._deadline_s or now_s + SPLIT_S_MAX
        if now_s > self._deadline_s:
            raise Halt(f"the split has not ended after {SPLIT_S_MAX:.0f} s: {self.doing}")
        doing = next(self._steps, None)
        self.doing = doing or self.doing
        return doing is None

    def _all_steps(self) -> Iterator[str]:
        yield from self._create()
        yield from self._fill()
        yield from self._verify()
        yield from self._switch()
        yield from self._retire()

    def _command(self, verb: str, doing: str, *options: str, tries: int = 1) -> Steps:
        """Run a command of `shardstream reshard`, and repeat it if it fails."""
        for attempt in range(1, tries + 1):
            name = f"reshard_{verb}_{attempt}"
            worker = self._workers.run(name, "reshard", verb, self._keyspace, RESHARD_ID, *options)
            while worker.status is None:
                told = worker.last_output() if "--json" in options else {}
                yield str(told.get("step", doing))
            if worker.status == 0:
                return worker
        raise worker.failure()

    def _create(self) -> Iterator[str]:
        shards = [f"--source={SOURCE}", *(f"--target={target}" for target in TARGETS)]
        yield from self._command("create", "the reshard is being created", *shards)
        self._report(f"reshard created: {SOURCE} is to become {' and '.join(TARGETS)}")

    def _fill(self) -> Iterator[str]:
        """Wait until each target has the copied rows and the changes made meanwhile."""
        appliers = {}
        for target in TARGETS:
            self._watch.follow_target(target)
            self._workers.start(f"producer_{target}", "produce", self._keyspace, target)
            arguments = ["reshard", "run", self._keyspace, RESHARD_ID, target, "--every", "1"]
            appliers[target] = self._workers.start(f"applier_{target}", *arguments)
        self._copies.read_to_end()
        while not are_complete(copies := list(self._copies.tables.values())):
            yield f"{sum(copy.rows for copy in copies):,} rows copied"
            self._copies.poll(0)
        copied = self._watch.views[SOURCE].rows
        while True:
            told = {target: applier.last_output() for target, applier in appliers.items()}
            lags = ", ".join(f"{target} {_lag(status)}" for target, status in told.items())
            if all(_follows(status, copied) for status in told.values()):
                break
            yield f"the targets apply; behind the source: {lags}"
        rows = sum(copy.rows for copy in copies)
        self._report(f"{rows:,} rows copied; behind the source: {lags}")

    def _verify(self) -> Iterator[str]:
        doing = "comparing source and targets row by row"
        worker = yield from self._command("verify", doing, "--json", tries=TRIES_MAX)
        found = worker.output()
        rows = " and ".join(f"{one['rows']:,} rows of {one['target']}" for one in found)
        differing = sum(one["differing"] for one in found)
        self._report(f"verified: {rows}, {differing} differ")

    def _switch(self) -> Iterator[str]:
        worker = yield from self._command("switch", "switching", "--json", tries=TRIES_MAX)
        stopped_ms = worker.last_output()["stopped_ms"]
        # None if one attempt stopped writes and a later one opened them.
        how_long = "by an earlier attempt" if stopped_ms is None else f"for {stopped_ms} ms"
        self._stopped = f"writes were stopped {how_long}"
        self._report(f"switched: {self._stopped}")

    def _retire(self) -> Iterator[str]:
        """Stop the source: even a late reader only needs its log, which stays."""
        yield from self._released([f"applier_{target}" for target in TARGETS])
        yield from self._command("complete", "cleaning up", tries=TRIES_MAX)
        yield from self._released([f"producer_{SOURCE}"])
        self._server.ask_to_stop()
        while self._server.pid is not None:
            yield f"the server of {SOURCE} stops"
        self._report(f"{SOURCE} is gone, with its producer and its database server")
        self.doing = f"done; {self._stopped}"

    def _released(self, names: list[str]) -> Iterator[str]:
        workers = [self._workers.release(name) for name in names]
        while any(worker.status is None for worker in workers):
            yield f"{', '.join(names)} end"


def are_complete(copies: list[TableCopy]) -> bool:
    """Whether all tables are copied. Halt if a copy has failed."""
    if failed := [f"{copy.name}: {copy.note}" for copy in copies if copy.state is CopyState.FAILED]:
        raise Halt("\n".join(failed))
    return all(copy.state is CopyState.COMPLETED for copy in copies)


def _lag(status: dict[str, Any]) -> str:
    return f"{status['behind_ms']:,} ms" if status else "starting"


def _follows(status: dict[str, Any], seq: int) -> bool:
    """Whether an applier has reached `seq` of the source and is close to its end."""
    return bool(status) and status["seqs"].get(SOURCE, 0) >= seq and status["behind_ms"] < FOLLOW_MS
