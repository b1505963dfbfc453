"""Requests copies, waits for them, and checks the log; shared by the copy's tests."""

from typing import Any

from producers.settings import ShardProducerSettings
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import WrittenLog
from tests.waiting import wait_for
from topics.names import ShardTopics
from topics.progress.copy_topic import (
    CopyAction,
    CopyAnswer,
    CopyFeed,
    CopyRequest,
    CopyState,
    TableCopy,
    ask,
    read_copies,
)
from topics.records.vevent import EventType, Op, VEvent


def topics_of(settings: ShardProducerSettings) -> ShardTopics:
    """The shard's topics."""
    return ShardTopics(settings.keyspace, settings.shard)


def request(
    settings: ShardProducerSettings, action: CopyAction, *tables: str, where: str = ""
) -> CopyAnswer:
    """Send a request to the running producer and wait for its answer."""
    asked = CopyRequest(action, tables, where)
    ask(settings.kafka, topics_of(settings), asked)
    with CopyFeed(settings.kafka, topics_of(settings)) as feed:
        feed.read_to_end()

        def is_answered() -> bool:
            feed.poll(0.1)
            return asked.id in feed.answers

        wait_for(f"an answer to {action.value} {tables}", is_answered)
        return feed.answers[asked.id]


def start(settings: ShardProducerSettings, *tables: str, where: str = "") -> None:
    """Start copies, none of which may be refused."""
    answer = request(settings, CopyAction.START, *tables, where=where)

    assert answer.problems == ()


def wait_state(
    settings: ShardProducerSettings, state: CopyState, *tables: str
) -> dict[str, TableCopy]:
    """Wait until all these tables (by default all) are in that state."""
    found: dict[str, TableCopy] = {}

    def is_there() -> bool:
        copies = {c.name: c for c in read_copies(settings.kafka, topics_of(settings)).values()}
        found.update(copies)
        failed = [c for c in copies.values() if c.state is CopyState.FAILED]
        assert state is CopyState.FAILED or not failed, failed
        wanted = tables or tuple(copies)
        return bool(wanted) and all(
            name in copies and copies[name].state is state for name in wanted
        )

    wait_for(f"copies are {state.value}", is_there)
    return found


def rows_of(event: VEvent) -> list[tuple[tuple[Any, ...], dict[str, Any] | None]]:
    """Return an event's effect on a table, as (key, row), with READ and INSERT as upserts."""
    assert event.shape is not None
    names = [event.shape.columns[i].name for i in event.shape.primary_key]
    changes: list[tuple[tuple[Any, ...], dict[str, Any] | None]] = []
    if event.before is not None:
        changes.append((tuple(event.before[n] for n in names), None))
    if event.after is not None:
        changes.append((tuple(event.after[n] for n in names), dict(event.after)))
    return changes


def replay_upserts(log: WrittenLog, database: str, table: str) -> dict[tuple[Any, ...], Any]:
    """Return the table's rows by key, as stream and copy together result in."""
    rows: dict[tuple[Any, ...], Any] = {}
    for event in log.events:
        if event.type is not EventType.ROW or (event.database, event.table) != (database, table):
            continue
        for key, row in rows_of(event):
            if row is None:
                rows.pop(key, None)
            else:
                rows[key] = row
    return rows


def server_rows(
    server: DatabaseFixture, database: str, table: str, key: list[str]
) -> dict[tuple[Any, ...], Any]:
    """Return the table's rows by key, as the server has them."""
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {tuple(row[name] for name in key): row for row in found}


def check_no_stale_read(log: WrittenLog, database: str, table: str, version: str) -> int:
    """Check that no READ is older than earlier changes of its key, deletes included; count READs.

    `version`: a column that no two writes of a key give the same value. A row that was READ may
    come once more as the change that made it.
    """
    made: dict[tuple[tuple[Any, ...], object], int] = {}  # by key and version: the last seq with it
    rows: list[VEvent] = []
    for event in log.events:
        if event.type is EventType.ROW and (event.database, event.table) == (database, table):
            rows.append(event)
            if event.op is not Op.READ and event.after is not None:
                made[_key(event, event.after), event.after[version]] = event.seq
    state: dict[tuple[Any, ...], object] = {}
    reads = 0
    for event in rows:
        if event.op is Op.READ:
            assert event.after is not None
            reads += 1
            key, found = _key(event, event.after), event.after[version]
            is_now = key not in state or state[key] == found
            assert is_now or made.get((key, found), -1) > event.seq, f"seq {event.seq}: stale {key}"
            continue
        if event.before is not None:
            state[_key(event, event.before)] = None
        if event.after is not None:
            state[_key(event, event.after)] = event.after[version]
    return reads


def _key(event: VEvent, image: dict[str, Any]) -> tuple[Any, ...]:
    assert event.shape is not None
    return tuple(image[event.shape.columns[i].name] for i in event.shape.primary_key)


def check_changes_once(log: WrittenLog) -> None:
    """Check that no change is in the log twice; copied rows are of no transaction."""
    changes = [(e.gtid, e.row_index) for e in log.events if e.type is EventType.ROW and e.gtid]
    assert len(set(changes)) == len(changes)


def check_copied_log(log: WrittenLog) -> None:
    """Check seqs without gaps or repeats, times that never fall, and whole copy transactions."""
    assert [e.seq for e in log.events] == list(range(1, len(log.events) + 1))
    for before, event in zip(log.events, log.events[1:], strict=False):
        assert event.timestamp_us >= before.timestamp_us
        assert event.row_index == (0 if before.last else before.row_index + 1)
    assert not log.events or log.events[-1].last
    assert log.timestamps_ms == [e.timestamp_us // 1000 for e in log.events]
