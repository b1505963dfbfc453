"""A keyspace as an operator sees it: a settings file, servers, and commands as processes."""

import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from event_token import StreamPosition
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import (
    Running,
    WrittenLog,
    read_log,
    settings_of,
    wait_caught_up,
)
from tests.resharding.accounts import RESHARDER, RESHARDER_PASSWORD, resharder_of
from tests.resharding.shards import checkpoint_seqs
from tests.resharding.switchable import APP, make_account
from tests.shardstream.command_line import Background, run, streaming, write_settings
from tests.waiting import COSTLY_POLL_S, wait_for
from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import read_tail
from topics.keyspace.topology import Topology, read_topology
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.progress.copy_topic import CopyState, read_copies
from topics.records.vevent import VEvent
from topics.schemas import open_schema_ids
from topics.stream.subscriber import StreamSubscriber

VINDEXES = ("orders", "sessions")


class Flow:
    """Runs commands as a user does. `servers`: by shard, including future targets."""

    def __init__(
        self,
        folder: Path,
        kafka: KafkaCluster,
        keyspace: str,
        *,
        schema: str,
        servers: Mapping[str, DatabaseFixture],
        first: tuple[str, ...],
        tables: tuple[str, ...] = VINDEXES,
        metadata: str = "logged",
    ) -> None:
        """`first`: the shards that serve at first. `tables`: sharded by `user_id`.

        `metadata`: where producers have names of columns from.
        """
        self.folder, self.keyspace, self.schema = folder, keyspace, schema
        self.servers = dict(servers)
        self._tables, self._kafka, self._metadata = tables, kafka, metadata
        self.client = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
        self.logs = {s: settings_of(d, kafka, keyspace, shard=s) for s, d in servers.items()}
        self._running: dict[tuple[str, ...], Background] = {}
        self._started = 0
        self.write_settings(first, tuple(s for s in servers if s not in first))
        for shard in sorted(servers, key=lambda shard: shard in first):
            make_account(servers[shard], locked=shard not in first)
            resharder_of(servers[shard], shard)

    def add_server(self, shard: str, database: DatabaseFixture) -> None:
        """Prepare the server of a target that is needed only later."""
        self.servers[shard] = database
        self.logs[shard] = settings_of(database, self._kafka, self.keyspace, shard=shard)
        make_account(database, locked=True)
        resharder_of(database, shard)

    def write_settings(
        self,
        shards: tuple[str, ...],
        targets: tuple[str, ...],
        replicas: Mapping[str, DatabaseFixture] | None = None,
    ) -> None:
        """Write the settings file. `replicas`: a second server of some shards."""
        keyspace = self.keyspace
        path = write_settings(
            self.folder,
            self._kafka.bootstrap_servers,
            keyspace,
            {shard: self.servers[shard] for shard in shards},
            {shard: self.servers[shard] for shard in targets},
        )
        lines = []
        for shard, replica in (replicas or {}).items():
            (self.folder / f"password_{shard}_replica").write_text(replica.password)
            lines += [f'[[keyspaces.{keyspace}.shards."{shard}".servers]]']
            lines += [f'host = "{replica.host}"', f"port = {replica.port}"]
            lines += [f'user = "{replica.user}"', f'password_file = "password_{shard}_replica"']
        for table in self._tables:
            lines += [f"[[keyspaces.{keyspace}.vindexes]]", f'database = "{self.schema}"']
            lines += [f'table = "{table}"', 'column = "user_id"', 'vindex = "hash"']
        (self.folder / "password_resharder").write_text(RESHARDER_PASSWORD)
        lines += [f"[keyspaces.{keyspace}.reshard]", f'user = "{RESHARDER}"']
        lines += ['password_file = "password_resharder"']
        lines += [f'application_accounts = ["{APP}@%"]']
        accept = f'[producer]\naccept_unlogged_cascades = true\nmetadata = "{self._metadata}"\n'
        text = path.read_text().replace("[producer]\n", accept)
        path.write_text(text + "\n".join(lines) + "\n")
        self.config = str(path)

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        return run(*arguments, "--config", self.config)

    def reshard(self, verb: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of `shardstream reshard` that must succeed."""
        done = self.run("reshard", verb, self.keyspace, *arguments)
        assert done.returncode == 0, f"{verb}: {done.stdout}{done.stderr}"
        return done

    def refused(self, verb: str, *arguments: str) -> str:
        """Run a `shardstream reshard` command that rejects its input; return its message."""
        done = self.run("reshard", verb, self.keyspace, *arguments)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        return done.stderr

    def start(self, *arguments: str) -> Background:
        """Start a command that runs until it is killed: `produce` or `reshard run`."""
        self._started += 1
        name = f"{self._started}-{'-'.join(arguments[:2])}"
        asked = (*arguments, "--config", self.config, "--json")
        self._running[arguments] = Background(self.folder, name, *asked)
        return self._running[arguments]

    def kill(self, *arguments: str) -> None:
        """Send SIGKILL to a command that must still be running."""
        background = self._running.pop(arguments)
        assert background.process.poll() is None, background.errors
        background.process.kill()
        background.process.wait()

    def wait_end(self, *arguments: str) -> int:
        """Wait until a command has ended by itself; return its exit status."""
        process = self._running.pop(arguments).process
        wait_for(f"{arguments} ends", lambda: process.poll() is not None)
        return process.wait()

    def produce(self, *shards: str) -> None:
        """Start producers and wait until they stream."""
        started = [self.start("produce", self.keyspace, shard) for shard in shards]
        for producer in started:
            producer.wait_for("streaming", streaming)

    def apply(self, reshard_id: str, *targets: str) -> None:
        """Start the appliers of targets."""
        for target in targets:
            self.start("reshard", "run", self.keyspace, reshard_id, target)

    def end(self) -> None:
        """Kill everything that runs."""
        for arguments in list(self._running):
            background = self._running.pop(arguments)
            background.process.kill()
            background.process.wait()
        for database in set(self.servers.values()):
            with database.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"DROP USER IF EXISTS '{APP}'@'%'")

    def topology(self) -> Topology:
        """Return the current topology."""
        found = read_topology(self.client, self.keyspace)
        assert found is not None
        return found

    def serving(self) -> list[str]:
        """Return the shards that serve now."""
        return [shard.name for shard in self.topology().serving()]

    def last_seq(self, shard: str) -> int:
        """Return the last seq of a shard's log."""
        last = read_tail(self.client, ShardTopics(self.keyspace, shard).progress).last
        assert last is not None
        return decode_progress(last.value, open_schema_ids(self.client, None)).last_seq

    def log(self, shard: str) -> WrittenLog:
        """Return all records of a shard's log."""
        return read_log(self.logs[shard])

    def wait_copied(
        self, reshard_id: str, sources: tuple[str, ...], targets: tuple[str, ...]
    ) -> None:
        """Wait until the sources' tables are copied and the targets have applied the copy."""

        def copied(source: str) -> bool:
            copies = read_copies(self.client, ShardTopics(self.keyspace, source)).values()
            states = [copy.state for copy in copies]
            return states == [CopyState.COMPLETED] * len(self._tables)

        wait_for("the tables are copied", lambda: all(map(copied, sources)), poll_s=COSTLY_POLL_S)
        wanted = {source: self.last_seq(source) for source in sources}

        def has_all(target: str) -> bool:
            seqs = checkpoint_seqs(self.servers[target], reshard_id)
            self._all_run()
            return all(seqs[source] >= seq for source, seq in wanted.items())

        wait_for(
            f"the targets have {wanted}", lambda: all(map(has_all, targets)), poll_s=COSTLY_POLL_S
        )

    def _all_run(self) -> None:
        for arguments, background in self._running.items():
            assert background.process.poll() is None, f"{arguments}: {background.errors}"


@contextmanager
def flow(*arguments: Any, **named: Any) -> Iterator[Flow]:
    """Yield a flow; everything it started ends with the block."""
    made = Flow(*arguments, **named)
    try:
        yield made
    finally:
        made.end()


class Reader(Running):
    """A subscriber from the start of the logs, in a thread, that can be restarted."""

    def __init__(self, config: ClientConfig, keyspace: str) -> None:
        self.events: list[VEvent] = []
        self.starts = 0
        self._config, self._keyspace = config, keyspace
        self._subscriber: StreamSubscriber | None = None
        super().__init__("the reader", self._read)

    def _read(self, stop: threading.Event) -> None:
        while not stop.is_set():
            start: str | StreamPosition = "earliest"
            if self.events:
                position = self.events[-1].position
                assert position is not None
                start = position.to_string()  # what a process leaves behind when it dies
            self.starts += 1
            opened = StreamSubscriber(self._keyspace, "-", start, config=self._config)
            with opened as self._subscriber:
                for event in self._subscriber:
                    self.events.append(event)

    def restart(self) -> None:
        """Stop the subscriber at an arbitrary point; the next one resumes after its last event."""
        assert self._subscriber is not None
        self._subscriber.close()

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for the condition; raise the reader's error if it fails."""

        def is_so() -> bool:
            self.check()
            return condition()

        wait_for(what, is_so)

    def end(self) -> None:
        """Stop, and raise the error that it ended with."""
        self.stop.set()

        def is_over() -> bool:
            # Repeat: it may be about to open one.
            if self._subscriber is not None:
                self._subscriber.close()
            return not self.runs

        wait_for("the reader has ended", is_over)
        super().end()


@contextmanager
def reading(config: ClientConfig, keyspace: str) -> Iterator[Reader]:
    """Yield a reader for the duration of a block; its error is raised there."""
    reader = Reader(config, keyspace)
    try:
        yield reader
    finally:
        reader.end()


def wait_read(keyspace: Flow, reader: Reader) -> None:
    """Wait until the reader has everything that the serving shards have executed."""
    wanted = {}
    for shard in keyspace.serving():
        wait_caught_up(keyspace.logs[shard])
        wanted[shard] = keyspace.last_seq(shard)
    reader.wait_for(
        f"the reader has {wanted}",
        lambda: wanted.items() <= {e.shard: e.seq for e in list(reader.events)}.items(),
    )
