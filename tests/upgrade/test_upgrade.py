"""What an earlier version left is continued: logs, copies, readers, a reshard in flight."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_consumers.change_log.check import check_changelog
from spark_consumers.change_log.replay import replay_changelog
from spark_consumers.sink_query.origin import Origin
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.copy.copying import (
    check_copied_log,
    replay_upserts,
    request,
    server_rows,
    wait_state,
)
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    WAIT_S,
    WrittenLog,
    check_log,
    check_progress,
    producing,
    read_log,
    replay,
    settings_of,
    table_rows,
    wait_caught_up,
    wait_for,
)
from tests.resharding.flow import Flow, flow
from tests.resharding.operating import SWITCH_RUNS_MAX, complete, lags, verify
from tests.resharding.shards import checkpoint_seqs
from tests.resharding.stream_checks import check_order, replayed, served_part
from tests.resharding.writers import rows_of, shard_of
from tests.upgrade.before import (
    KEYSPACE,
    MARIA,
    PLAIN,
    RESHARD,
    SCHEMA,
    TARGETS,
    Before,
    unpack,
)
from topics.names import ShardTopics
from topics.progress.copy_topic import CopyAction, CopyState, read_copies
from topics.records.vevent import EventType, Op, VEvent
from topics.stream.subscriber import StreamSubscriber

NEW_ROWS = 20
# Spark starts, and runs its first batches, beside six other processes of the test.
SPARK_S = 400.0

Held = dict[str, list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def before(real_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Before]:
    """A broker on the recorded files."""
    found = unpack(tmp_path_factory.mktemp("before"))
    try:
        found.kafka.start()
        yield found
    finally:
        found.kafka.kill()


def write_orders(servers: dict[str, DatabaseFixture], first: int) -> None:
    """Insert rows where they belong, and change some of them."""
    for i in range(first, first + NEW_ROWS):
        database = servers[shard_of(i, list(servers))]
        statements(
            database,
            f"INSERT INTO {SCHEMA}.orders VALUES ({i}, {i}, 'n{i}', {i}, 'new')",
            f"UPDATE {SCHEMA}.orders SET note = NULL WHERE id = {i} AND id % 3 = 0",
        )


def switch(played: Flow) -> None:
    """Switch, as often as a busy machine needs."""
    for _ in range(SWITCH_RUNS_MAX):
        done = played.run("reshard", "switch", KEYSPACE, RESHARD)
        if not lags(done.stderr):
            break
    assert done.returncode == 0, done.stderr


def read(played: Flow, start: str, count: int) -> list[VEvent]:
    """Read this number of events of the merged stream, or what comes before it falls silent."""
    reader = StreamSubscriber(KEYSPACE, "-", start, config=played.client, idle_timeout_s=WAIT_S)
    with reader:
        return list(itertools.islice(reader, count))


def test_a_reshard_in_flight_is_finished(
    before: Before,
    start_mysql: StartServer,
    tmp_path: Path,
) -> None:
    """Upgrade: producers, appliers, `switch`, a Subscriber and a Spark checkpoint go on.

    Everything that the earlier version had left to do is done once: by the appliers, which are
    behind, the subscriber in the midst of a transaction, and the change log.
    """
    servers = dict(zip(("-", *TARGETS), start_mysql.together(3), strict=True))
    for shard, database in servers.items():
        before.restore(shard, database)
    world = {"schema": SCHEMA, "servers": servers, "first": ("-",)}
    with flow(tmp_path, before.kafka, KEYSPACE, **world) as played:
        behind = {s: checkpoint_seqs(servers[s], RESHARD)["-"] for s in TARGETS}
        assert all(seq < before.last_seqs[f"{KEYSPACE}.-"] for seq in behind.values())
        played.produce("-", *TARGETS)
        played.apply(RESHARD, *TARGETS)
        write_orders({"-": servers["-"]}, 10_000)
        wait_caught_up(played.logs["-"])
        wanted = played.last_seq("-")
        wait_for(
            "the targets have caught up",
            lambda: all(checkpoint_seqs(servers[s], RESHARD)["-"] >= wanted for s in TARGETS),
        )
        verify(played, RESHARD, TARGETS)
        switch(played)
        targets = {shard: servers[shard] for shard in TARGETS}
        write_orders(targets, 20_000)
        for shard in TARGETS:
            wait_caught_up(played.logs[shard])
        held = rows_of(targets, SCHEMA)
        logs = {shard: played.log(shard) for shard in ("-", *TARGETS)}
        changes = check_stream(played, before, logs, held)
        check_changelog_continues(played, before, changes, held)
        complete(played, RESHARD, ("-",), TARGETS)


def check_stream(played: Flow, before: Before, logs: dict[str, WrittenLog], held: Held) -> int:
    """Check what was delivered before and what comes after its position; return their number."""
    count = sum(len(served_part(log)) for log in logs.values())
    events = read(played, "earliest", count)
    check_order(events, logs)
    assert replayed(events) == held
    at = len(before.delivered)
    whole = [(event.shard, event.seq) for event in events]
    assert whole[:at] == before.delivered
    assert not events[at - 1].last
    rest = read(played, before.position, count - at)
    assert [(event.shard, event.seq) for event in rest] == whole[at:]
    return count


def check_changelog_continues(played: Flow, before: Before, changes: int, held: Held) -> None:
    """The change log goes on from its checkpoint, holds every change once, and tells its stream."""
    target = str(before.changelog)
    began_with = DeltaTable(target).count()
    assert 0 < began_with < changes
    running = played.start("changelog", KEYSPACE, "--target", target)

    def has_all() -> bool:
        assert running.process.poll() is None, running.errors
        return bool(running.lines) and running.lines[-1]["rows"] >= changes

    wait_for(f"the change log has {changes} rows", has_all, SPARK_S)
    kept = DeltaTable(target).metadata().configuration
    assert kept.items() >= Origin(KEYSPACE).properties().items()
    report = check_changelog(target)
    assert (report.changes, report.lost, report.repeated) == (changes, 0, 0)
    tables = replay_changelog(target)
    for name, rows in held.items():
        found = [tuple(map(str, row.values())) for row in tables[SCHEMA, name].rows()]
        assert sorted(found) == sorted(tuple(map(str, row[1:])) for row in rows)


def test_a_paused_copy_is_resumed(before: Before, start_mysql: StartServer) -> None:
    """Upgrade: a copy goes on after its last key, and the log then holds the table once."""
    server = start_mysql()
    before.restore("80-", server)
    settings = settings_of(server, before.kafka, PLAIN)
    topics = ShardTopics(PLAIN, settings.shard)
    [paused] = read_copies(settings.kafka, topics).values()
    assert paused.state is CopyState.PAUSED
    assert paused.rows > 0
    with producing(settings):
        statements(server, "UPDATE other.t SET v = 'changed' WHERE id % 50 = 0")
        assert request(settings, CopyAction.RESUME, "other.t").problems == ()
        wait_state(settings, CopyState.COMPLETED)
        wait_caught_up(settings)
    log = read_log(settings)

    check_copied_log(log)
    check_progress(log)
    assert replay_upserts(log, "other", "t") == server_rows(server, "other", "t", ["id"])
    keys = [int(str(e.after["id"])) for e in log.events if e.op is Op.READ and e.after]
    assert keys[: paused.rows] == list(range(paused.rows))
    assert sorted(set(keys)) == keys


def test_a_log_of_mariadb_is_continued(before: Before, start_mariadb: StartServer) -> None:
    """Upgrade: the producer resumes at the recorded position, and the log takes an identity."""
    server = start_mariadb()
    before.restore(MARIA, server)
    settings = settings_of(server, before.kafka, MARIA)
    with producing(settings):
        statements(server, "UPDATE other.t SET v = 'changed' WHERE id = 7")
        wait_caught_up(settings)
    log = read_log(settings)

    check_log(log)
    check_progress(log)
    added = [e for e in log.events if e.seq > before.last_seqs[f"{MARIA}.-"]]
    # The statements that create the table of the identity come first.
    assert [e.type for e in added] == [EventType.DDL, EventType.DDL, EventType.ROW]
    assert log.progress[-1].identity
    assert replay(log, "other", "t") == table_rows(server, "other", "t")
