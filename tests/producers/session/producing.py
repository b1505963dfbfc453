"""What the producer's tests share: running one, and reading and judging what it wrote."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from tempfile import TemporaryFile
from typing import Any

from databases.connection import open_connection
from databases.server_facts import facts_of
from event_token import Flavor, Rebuild, Retry, parse_gtid_set
from producers.errors import ClockUnknown, Problem
from producers.preflight import shard_findings
from producers.session.supervisor import run_shard
from producers.settings import ProducerState, ProducerStatus, ServerSettings, ShardProducerSettings
from producers.typed_columns import BYTES, TypedColumns
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.program_starter import start_program
from tests.waiting import COSTLY_POLL_S, WAIT_S, wait_for
from topics.kafka.client import RECORD_BYTES_OPTION, ClientConfig
from topics.kafka.partition_reader import (
    await_readable,
    open_end_consumer,
    partition_bounds,
    read_tail,
    read_to_end,
)
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.progress.committed_tail import last_progress
from topics.progress.record import Progress, StopReason, first_offset_of, offsets_before
from topics.records.event_decoder import EventDecoder
from topics.records.vevent import Op, VEvent
from topics.schemas import open_schema_ids

# Under load a broker spends most of its time on commits; an only change is committed at once.
COMMIT_MS = 100
# A heartbeat is a transaction, too: an idle producer needs half of those that are the default.
HEARTBEAT_MS = 500
SHARD = "-"
# What a binlog of MariaDB does not show, for servers that other tests have left tables on. Of a
# table `typed` columns are told by their names.
TYPES = TypedColumns(
    {
        r"/.*\.typed\.u\d?/": "uuid",
        r"/.*\.typed\.a/": "inet4",
        r"/.*\.typed\.b/": "inet6",
        r"/(?!.*\.typed\.\w+$).*/": BYTES,
    }
)


def server_of(database: DatabaseFixture) -> ServerSettings:
    """The server with its replication account."""
    return ServerSettings(database.host, database.port, database.user, database.password)


def settings_of(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str, **changes: Any
) -> ShardProducerSettings:
    """Settings of the keyspace's one shard; what tests leave behind is accepted."""
    client = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    return settings_alone(database, **{"keyspace": keyspace, "kafka": client, **changes})


def limited(settings: ShardProducerSettings, record_bytes_max: int) -> ShardProducerSettings:
    """The same with another limit of records."""
    client = {**settings.kafka, RECORD_BYTES_OPTION: str(record_bytes_max)}
    return replace(settings, kafka=ClientConfig(client))


def settings_alone(database: DatabaseFixture, **changes: Any) -> ShardProducerSettings:
    """The same without a Kafka cluster, for functions that ask servers alone."""
    chosen: dict[str, Any] = {
        "keyspace": "alone",
        "shard": SHARD,
        "flavor": Flavor(database.flavor.value),
        "servers": (server_of(database),),
        "kafka": ClientConfig({"bootstrap.servers": "127.0.0.1:1"}),
        "start": "latest",
        "accept_unlogged_cascades": True,
        "accept_loss_at_server_crash": True,
        "commit_ms": COMMIT_MS,
        "heartbeat_ms": HEARTBEAT_MS,
        "typed_columns": TYPES,
        **changes,
    }
    return ShardProducerSettings(**chosen)


def problems_of(server: ServerSettings, flavor: Flavor, **accepted: Any) -> list[Problem]:
    """What preflight refuses a server for, its tables aside."""
    away = ServerSettings("127.0.0.1", 1, "nobody", "")  # some server must be read from
    servers = (server,) if server.read else (server, away)
    client = ClientConfig({"bootstrap.servers": "127.0.0.1:1"})
    settings = ShardProducerSettings(
        keyspace="alone", shard=SHARD, flavor=flavor, servers=servers, kafka=client, **accepted
    )
    return shard_findings(settings, with_tables=False).problems


def warnings_of(settings: ShardProducerSettings) -> list[str]:
    """What preflight warns of, the tables aside."""
    return shard_findings(settings, with_tables=False).warnings


class SettableBound:
    """A clock source that a test sets; None: nobody knows."""

    def __init__(self, us: int | None) -> None:
        """Begin with this bound."""
        self.us = us

    def bound_us(self) -> int:
        """See ClockSource."""
        if self.us is None:
            raise ClockUnknown("nobody knows")
        return self.us


class Running:
    """Work in a thread until `stop` is set; its error is the test's."""

    def __init__(self, what: str, work: Callable[[threading.Event], None]) -> None:
        """Begin; `what` names it in messages."""
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self._what, self._work = what, work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self.stop)
        except BaseException as error:  # noqa: BLE001 - the test checks it
            self.error = error

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise the error that it has ended with."""
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """Stop it and raise what it ended with."""
        self.stop.set()
        self._thread.join(WAIT_S)
        assert not self.runs, f"{self._what} did not stop"
        self.check()

    def wait_error(self) -> BaseException:
        """Wait until it has ended by an error, and give that."""
        wait_for(f"{self._what} ends by itself", lambda: not self.runs)
        assert self.error is not None, "it ended without an error"
        return self.error


class RunningProducer(Running):
    """`run_shard` in a thread, with what it said."""

    def __init__(self, settings: ShardProducerSettings) -> None:
        self.settings = settings
        self.statuses: list[ProducerStatus] = []
        super().__init__(
            "the producer", lambda stop: run_shard(settings, stop, self.statuses.append)
        )

    @property
    def rows(self) -> int:
        """The records that it has committed so far."""
        statuses = list(self.statuses)
        return statuses[-1].rows_total if statuses else 0

    def has_been(self, state: ProducerState) -> bool:
        """Whether it has reported the state; its error is the test's."""
        self.check()
        return any(status.state is state for status in list(self.statuses))

    def wait_streaming(self) -> None:
        """Wait until it has fenced, resumed and connected."""
        wait_for(
            "the producer streams",
            lambda: self.has_been(ProducerState.STREAMING),
            said=lambda: self.statuses[-3:],
        )


def wait_noted(producer: RunningProducer, text: str) -> None:
    """Wait until the producer reports a text while it goes on running."""

    def is_noted() -> bool:
        producer.check()
        return any(text in status.note for status in list(producer.statuses))

    wait_for(f"{text!r} is reported", is_noted)


@contextmanager
def producing(settings: ShardProducerSettings) -> Iterator[RunningProducer]:
    """A producer that streams; it is stopped at the end, and its error raised."""
    producer = RunningProducer(settings)
    try:
        producer.wait_streaming()
        yield producer
    finally:
        producer.end()


class ProducerProcess:
    """`run_shard` in a process of its own, to be killed."""

    def __init__(self, settings: ShardProducerSettings, *, kill_at: str = "") -> None:
        [server] = settings.servers
        told = {
            "keyspace": settings.keyspace,
            "flavor": settings.flavor.value,
            "server": [server.host, server.port, server.user, server.password],
            "kafka": dict(settings.kafka),
            "start": settings.start,
            "commit_rows": settings.commit_rows,
            "metadata": settings.metadata,
            "copy": asdict(settings.copy),
            "kill_at": kill_at,
        }
        reading, writing = os.pipe()
        self._output = os.fdopen(reading)
        with os.fdopen(writing, "wb") as out, TemporaryFile() as given:
            given.write(json.dumps(told).encode())
            given.seek(0)
            self._process = start_program("tests.producers.session.run_one", (), out, out, given)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self._output:
            self.lines.extend(self._output)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def wait_line(self, beginning: str) -> None:
        """Wait for a line that begins so."""
        wait_for(
            f"a line {beginning!r}",
            lambda: any(line.startswith(beginning) for line in list(self.lines)),
            said=self.said,
            process=self._process,
        )

    def said(self) -> str:
        """Its last lines, and whether it still runs."""
        return f"{self.lines[-5:]} (exit status {self._process.poll()})"

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self._process.kill()
        self._process.wait(WAIT_S)

    def end(self) -> int:
        """Ask it to stop; give its exit status."""
        self._process.terminate()
        return self._process.wait(WAIT_S)

    def wait(self) -> int:
        """Wait until it ends by itself; give its exit status."""
        status = self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return status


@dataclass(frozen=True)
class WrittenLog:
    """All that is committed of a shard: records with their events, progress records."""

    events: list[VEvent]
    timestamps_ms: list[int]
    progress: list[Progress]


def read_log(settings: ShardProducerSettings) -> WrittenLog:
    """Read both topics of the shard from their beginning."""
    topics = ShardTopics(settings.keyspace, settings.shard)
    schema_ids = open_schema_ids(settings.kafka, None)
    codec = EventDecoder(schema_ids)
    records = list(read_to_end(settings.kafka, topics.log))
    return WrittenLog(
        [codec.decode(r.value, settings.shard, r.offset) for r in records],
        [r.timestamp_ms for r in records],
        [
            decode_progress(r.value, schema_ids)
            for r in read_to_end(settings.kafka, topics.progress)
        ],
    )


def progress_of(settings: ShardProducerSettings) -> Progress | None:
    """The last progress record of the shard, with what its headers say."""
    topics = ShardTopics(settings.keyspace, settings.shard)
    return last_progress(settings.kafka, topics, open_schema_ids(settings.kafka, None))


def left_reason(settings: ShardProducerSettings) -> StopReason | None:
    """What `status` shows of why the shard's producer has stopped, or starts over."""
    progress = progress_of(settings)
    return None if progress is None else progress.stopped


def wait_caught_up(settings: ShardProducerSettings) -> None:
    """Wait until the committed progress includes all that the server has executed by now.

    Its rows can be read then, too: brokers write a commit's marker to each of its topics.
    """
    topics = ShardTopics(settings.keyspace, settings.shard)
    schema_ids = open_schema_ids(settings.kafka, None)
    connection = open_connection(settings.servers[0])
    try:
        executed = facts_of(settings.flavor).history(connection).executed
    finally:
        connection.close()

    def reached() -> bool:
        try:
            last = read_tail(settings.kafka, topics.progress, consumer=consumer).last
            if last is None:
                return False
            progress = decode_progress(last.value, schema_ids)
            if not parse_gtid_set(progress.position, settings.flavor).includes(executed):
                return False
            _, readable = partition_bounds(consumer, settings.kafka, topics.log)
        except (Retry, Rebuild):
            return False  # A broker has died on purpose and its partitions are moving.
        return readable >= progress.end_offset

    with closing(open_end_consumer(settings.kafka)) as consumer:
        wait_for(f"{topics.log} reaches {executed}", reached, poll_s=COSTLY_POLL_S)


def wait_readable(settings: ShardProducerSettings) -> None:
    """Wait until all that was written to the shard's topics can be read.

    A commit is answered before brokers write its markers.
    """
    topics = ShardTopics(settings.keyspace, settings.shard)
    for topic in (topics.log, topics.progress):
        await_readable(settings.kafka, topic, 0, WAIT_S)


def check_log(log: WrittenLog) -> None:
    """Each seq once and without a gap, each row of a transaction once, times that never fall."""
    assert [e.seq for e in log.events] == list(range(1, len(log.events) + 1))
    assert len({(e.gtid, e.row_index) for e in log.events}) == len(log.events)
    for before, event in zip(log.events, log.events[1:], strict=False):
        assert event.timestamp_us >= before.timestamp_us
        if before.last:
            assert event.row_index == 0
        else:
            assert (event.gtid, event.row_index) == (before.gtid, before.row_index + 1)
    assert not log.events or log.events[-1].last
    assert log.timestamps_ms == [e.timestamp_us // 1000 for e in log.events]


def check_progress(log: WrittenLog) -> None:
    """The chain of seqs, offsets, ticks and promises hold for every record of the log."""
    offset_of = {e.seq: e.offset for e in log.events}
    # The least timestamp of the records from each seq on; times never fall, so it is the record's.
    time_of = {e.seq: e.timestamp_us for e in log.events}
    last_seq, head_us = 0, 0
    for progress in log.progress:
        assert progress.first_seq == last_seq + 1
        last_seq = progress.last_seq
        if progress.last_seq >= progress.first_seq:
            assert progress.end_offset == offset_of[last_seq] + 1
            parts = offsets_before(progress, progress.first_seq + 1)
            assert offset_of[progress.first_seq] == first_offset_of(progress) + parts - 1
        assert progress.head_us >= head_us
        head_us = progress.head_us
        assert time_of.get(last_seq + 1, head_us) >= head_us
    assert last_seq == len(log.events)
    _check_ticks(log)


def _check_ticks(log: WrittenLog) -> None:
    ticks = [tick for progress in log.progress for tick in progress.ticks]
    more = {seq: parts - 1 for progress in log.progress for seq, parts in progress.in_parts}
    cells: dict[int, int] = {}
    for event in log.events:
        first_offset = event.offset - more.get(event.seq, 0)
        cells.setdefault(event.timestamp_us - event.timestamp_us % 10_000, first_offset)
    assert [(t.timestamp_us, t.offset) for t in ticks] == sorted(cells.items())


def replay(log: WrittenLog, database: str, table: str, key: str = "id") -> dict[Any, Any]:
    """The table's rows by key, as the log's changes make them."""
    rows: dict[Any, Any] = {}
    for event in log.events:
        if (event.database, event.table) != (database, table):
            continue
        if event.op is Op.INSERT:
            assert event.after is not None
            assert event.after[key] not in rows
            rows[event.after[key]] = event.after
        elif event.op is Op.UPDATE:
            assert event.before is not None
            assert event.after is not None
            assert rows.pop(event.before[key]) == event.before
            rows[event.after[key]] = event.after
        else:
            assert event.op is Op.DELETE
            assert event.before is not None
            assert rows.pop(event.before[key]) == event.before
    return rows


def table_rows(database: DatabaseFixture, name: str, table: str) -> dict[Any, Any]:
    """The table's rows by their first column, columns by name."""
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        return {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}
