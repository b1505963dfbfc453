"""Switch, cancel and complete on real servers, killed between any two steps and racing."""

import functools
import threading
from collections.abc import Callable
from dataclasses import replace

import pymysql
import pytest

from databases.catalog import list_triggers
from event_token.errors import Halt, Rebuild, Retry, UsageError
from producers.decoder.errors import WriteAfterEnd
from resharding.apply.applier import ApplierSettings
from resharding.errors import DefinitionChanged
from resharding.servers import ReshardServer
from resharding.switch import executor, opening
from resharding.switch.complete import run_complete
from resharding.switch.decision import Action, JournalRow, SwitchStep
from resharding.switch.executor import run_cancel, run_switch
from resharding.switch.opening import trial_problems
from resharding.switch.shard_writes import ShardWrites
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import statements
from tests.producers.session.producing import read_log
from tests.resharding.accounts import RESHARDER, resharder_of
from tests.resharding.flow import reading
from tests.resharding.shards import RunningApplier
from tests.resharding.switchable import (
    APP,
    SOURCE,
    TARGETS,
    Switchable,
    app_session,
    split,
)
from tests.waiting import WAIT_S, wait_for
from topics.keyspace.topology import ReshardState, ShardState, read_topology
from topics.progress.record import GRID_US, JournalKind, Mark, MarkKind, cell_start_us

RUNS_MAX = 30
# What changes nothing the second time. A connection that has just been refused may still be listed
# as a session, and the marker of a CANCEL may not be written yet.
REPEATED = {Action.STOP_WRITES, Action.APPEND_CANCEL}


class Killed(Exception):  # noqa: N818 - what happened
    """Raised where a kill would end a command."""


def nothing(_step: SwitchStep) -> None:
    """Ignore the step."""


def never_on_both_sides(split: Switchable) -> None:
    """Check that the application can write to the source, or to targets, or nowhere."""
    found = split.open_shards()
    assert not (SOURCE in found and found - {SOURCE})


def killed_again_and_again(split: Switchable, run: Callable[..., object]) -> list[SwitchStep]:
    """Run a command until it ends, killing it before the second step of each run.

    A step of REPEATED is told once: see there.
    """
    done: list[SwitchStep] = []
    for _ in range(RUNS_MAX):
        heard: list[SwitchStep] = []

        def tell(step: SwitchStep, heard: list[SwitchStep] = heard) -> None:
            never_on_both_sides(split)
            if heard:
                raise Killed
            heard.append(step)
            if step.action not in REPEATED or step not in done:
                done.append(step)

        try:
            run(split.settings, tell)
        except Killed:
            continue
        return done
    raise AssertionError(f"not done after {RUNS_MAX} kills: {done}")


def marks(split: Switchable, shard: str) -> list[Mark]:
    """The marks in the progress topic of a shard."""
    return [p.mark for p in split.progress(shard) if p.mark is not None]


@pytest.mark.full
def test_switch_through_kills_between_any_two_steps(
    servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """Both targets serve all rows of their range; END and BEGIN are in the progress topics."""
    with split(servers, kafka, keyspace) as world:
        world.verified(0)
        writer = app_session(world.servers[SOURCE])

        done = killed_again_and_again(world, run_switch)

        assert [step.action for step in done] == [
            Action.STOP_WRITES,
            Action.WRITE_END,
            Action.DECIDE,
            Action.WRITE_BEGIN,
            Action.WRITE_BEGIN,
            Action.CHANGE_TOPOLOGY,
            *[Action.RESTORE_TRIGGERS] * 2,
            *[Action.OPEN_WRITES] * 2,
        ]
        with pytest.raises(pymysql.err.Error):
            writer.cursor().execute(f"INSERT INTO {world.schema}.t VALUES (1000)")
        assert world.open_shards() == set(TARGETS)
        assert sorted(world.ids("-80") + world.ids("80-")) == list(range(100))
        with app_session(world.servers["80-"]) as session, session.cursor() as cursor:
            cursor.execute(f"INSERT INTO {world.schema}.t VALUES (2000)")
            cursor.execute("SELECT @seen")
            assert cursor.fetchall() == ((2001,),)
        check_marks(world)
        topology = read_topology(world.settings.kafka, keyspace)
        assert topology is not None
        assert {s.name: s.state for s in topology.shards} == {
            SOURCE: ShardState.RETIRED,
            **dict.fromkeys(TARGETS, ShardState.SERVING),
        }
        assert topology.epoch == 1
        assert run_switch(world.settings, nothing).stopped_ms is None
        with pytest.raises(Halt, match="it is SWITCHED: `shardstream reshard switch"):
            run_cancel(world.settings, nothing)

        check_complete(world)
        assert run_switch(world.settings, nothing).stopped_ms is None
        with world.servers["-80"].connect() as connection:
            cursor = connection.cursor()
            for table in ("role", "checkpoint", "plan", "verified"):
                cursor.execute(
                    f"SELECT COUNT(*) FROM _shardstream.{table} WHERE reshard_id = %s",
                    (world.plan.reshard_id,),
                )
                assert cursor.fetchall() == ((0,),)


def check_complete(world: Switchable) -> None:
    """It can run again; a source that refuses the account or has left the settings is reported."""

    def refusing(shard: str) -> ReshardServer:
        server = world.settings.server_of(shard)
        return replace(server, password="wrong") if shard == SOURCE else server

    def unnamed(shard: str) -> ReshardServer:
        if shard == SOURCE:
            raise UsageError(f"no shard {shard}")
        return world.settings.server_of(shard)

    assert run_complete(world.settings) == []
    assert run_complete(world.settings) == []
    [refused] = run_complete(replace(world.settings, server_of=refusing))
    [gone] = run_complete(replace(world.settings, server_of=unnamed))

    assert "shard - keeps its rows in _shardstream" in refused
    assert "Access denied" in refused
    assert gone.endswith("no shard -")


def check_marks(world: Switchable) -> None:
    """One END, then a BEGIN on each target at the end of its cell; nothing older after BEGIN."""
    wait_for("BEGIN on all targets", lambda: all(marks(world, shard) for shard in TARGETS))
    producer = world.sources.producers[SOURCE].settings
    [end] = marks(world, SOURCE)
    log = read_log(producer)
    [end_event] = [e for e in log.events if e.offset == end.offset]
    assert (end.kind, end.sources, end.targets) == (MarkKind.END, (SOURCE,), TARGETS)
    hop = cell_start_us(end_event.timestamp_us) + GRID_US
    for shard in TARGETS:
        [mark] = marks(world, shard)
        assert (mark.kind, mark.hop_time_us) == (MarkKind.BEGIN, hop)
        events = read_log(replace(producer, shard=shard)).events
        assert all(e.timestamp_us >= hop for e in events if e.offset >= mark.offset)
        assert all(
            e.token.origin is not None for e in events if e.table == "t" and e.offset < mark.offset
        )


@pytest.mark.full
def test_a_paused_switch_wakes_after_a_cancel(
    servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """A switch that is about to decide is fenced, and has lost its claim; the source serves."""
    with split(servers, kafka, keyspace) as world:
        world.verified(0)
        reached, wake = threading.Event(), threading.Event()
        errors: list[BaseException] = []

        def pause(step: SwitchStep) -> None:
            if step.action is Action.DECIDE:
                reached.set()
                wake.wait(WAIT_S)

        def switch() -> None:
            try:
                run_switch(world.settings, pause)
            except BaseException as error:  # noqa: BLE001 - checked below
                errors.append(error)

        thread = threading.Thread(target=switch)
        thread.start()
        assert reached.wait(WAIT_S)
        done = killed_again_and_again(world, run_cancel)
        wake.set()
        thread.join(WAIT_S)

        assert isinstance(errors[0], Halt)
        assert "it is cancelled" in str(errors[0])
        assert [step.action for step in done] == [
            *[Action.APPEND_CANCEL] * 2,
            Action.CHANGE_TOPOLOGY,
            Action.WRITE_CANCELLED,
            Action.OPEN_WRITES,
        ]
        assert world.open_shards() == {SOURCE}
        with pytest.raises(Halt, match=r"it is cancelled \(-80, 80-\)"):
            run_switch(world.settings, nothing)
        run_cancel(world.settings, nothing)
        with app_session(world.servers[SOURCE]) as session, session.cursor() as cursor:
            cursor.execute(f"INSERT INTO {world.schema}.t VALUES (3000)")
        world.sources.last_seqs()
        assert [m.kind for m in marks(world, SOURCE)] == [MarkKind.END, MarkKind.CANCEL]
        log = read_log(world.sources.producers[SOURCE].settings)
        assert log.events[-1].after == {"id": 3000}
        topology = read_topology(world.settings.kafka, keyspace)
        assert topology is not None
        assert topology.reshards[0].state == ReshardState.CANCELLED.value
        assert [s.name for s in topology.serving()] == [SOURCE]


def distrust_after_begin(world: Switchable, step: SwitchStep) -> None:
    """Take away what triggers need, at the last moment."""
    if step.action is Action.RESTORE_TRIGGERS:
        world.trust_function_creators(TARGETS, on=False)


@pytest.mark.full
def test_a_write_after_end_is_seen_before_the_decision(
    servers: list[DatabaseFixture],
    kafka: KafkaCluster,
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A6: a row by an account that was not locked, behind END, keeps BEGIN from being written."""
    monkeypatch.setattr(executor, "AWAIT_S_MAX", 4.0)
    insert = ShardWrites.insert

    def insert_and_lose(writes: ShardWrites, row: JournalRow, shards: tuple[str, str]) -> None:
        insert(writes, row, shards)
        if row.kind is JournalKind.END:
            with world.servers[SOURCE].connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"INSERT INTO {world.schema}.t VALUES (5000)")

    with split(servers, kafka, keyspace) as world:
        world.verified(0)
        with monkeypatch.context() as patch:
            patch.setattr(ShardWrites, "insert", insert_and_lose)
            with pytest.raises(Halt, match="an account that is not in `application_accounts`"):
                run_switch(world.settings, nothing)
        assert world.open_shards() == set()
        assert all(marks(world, shard) == [] for shard in TARGETS)
        producer = world.sources.producers[SOURCE]
        assert isinstance(producer.wait_error(), WriteAfterEnd)
        producer.error = None
        monkeypatch.setattr(opening, "READY_S_MAX", 0.0)  # nobody continues that log
        with pytest.raises(UsageError, match="log of shard - is behind") as again:
            run_switch(world.settings, nothing)
        assert "Writes are stopped: fix this and run switch again" in str(again.value)

        run_cancel(world.settings, nothing)
        assert world.open_shards() == {SOURCE}
        assert 5000 in world.ids(SOURCE)


@pytest.mark.full
def test_the_end_of_a_lost_primary_does_not_count(
    servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """A9: where the present primary lacks END it is written again, and readers follow that one."""

    def die_before_begin(step: SwitchStep) -> None:
        if step.action is Action.DECIDE:
            raise Killed

    with split(servers, kafka, keyspace) as world:
        world.verified(0)
        with pytest.raises(Killed):
            run_switch(world.settings, die_before_begin)
        # What a failover to a server that had not replicated it leaves: END in the log alone.
        with world.servers[SOURCE].connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_log_bin = 0")
            cursor.execute("DELETE FROM _shardstream.journal")
        world.verified(4)
        with pytest.raises(UsageError, match="4 rows that differ"):
            run_switch(world.settings, nothing)
        world.verified(0)

        report = run_switch(world.settings, nothing)

        first, second = marks(world, SOURCE)
        assert (first.kind, second.kind) == (MarkKind.END, MarkKind.END)
        [end] = [
            event
            for event in read_log(world.sources.producers[SOURCE].settings).events
            if event.offset == second.offset
        ]
        assert report.hop_time_us == cell_start_us(end.timestamp_us) + GRID_US
        with app_session(world.servers["80-"]) as session, session.cursor() as cursor:
            cursor.execute(f"INSERT INTO {world.schema}.t VALUES (9000)")
        with reading(world.settings.kafka, keyspace) as reader:
            rows: list[int] = []

            def has_row() -> bool:
                events = [e for e in list(reader.events) if e.table == "t" and e.after]
                rows[:] = [int(str(event.after["id"])) for event in events if event.after]
                return 9000 in rows

            reader.wait_for("the row behind the hop", has_row)
        assert sorted(rows) == [*range(100), 9000]


@pytest.mark.full
def test_a_switch_that_stops_on_its_way_goes_on(
    servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """A5: the role is checked at the start, before END and before BEGIN; nothing is lost.

    B16: a trigger that targets reject is a reason not to begin; BEGIN is never the dead end.
    B19: what is not sharded may be written meanwhile.
    """
    with split(servers, kafka, keyspace) as world:
        world.verified(0)
        world.trust_function_creators(TARGETS, on=False)
        with pytest.raises(UsageError) as caught:
            run_switch(world.settings, nothing)
        world.trust_function_creators(TARGETS, on=True)
        for name in ("tr_1", "tr_2"):
            said = f"trigger {world.schema}.{name} cannot be created: server error 1419"
            assert str(caught.value).count(said) == len(TARGETS)
        assert "SET GLOBAL log_bin_trust_function_creators = ON" in str(caught.value)
        assert world.open_shards() == {SOURCE}

        source = world.servers[SOURCE]
        set_read_only(source, on=True)
        try:
            with pytest.raises(Halt, match="replica or read-only by now"):
                run_switch(world.settings, nothing)
            assert world.open_shards() == {SOURCE}
            for late, written in ((Action.WRITE_END, []), (Action.WRITE_BEGIN, [MarkKind.END])):
                set_read_only(source, on=False)
                with pytest.raises(Rebuild, match="replica or read-only by now"):
                    run_switch(world.settings, functools.partial(demote, source, late))
                kinds = [mark.kind for shard in world.servers for mark in marks(world, shard)]
                assert kinds == written
        finally:
            set_read_only(source, on=False)
        statements(
            source,
            f"CREATE DATABASE {world.schema}_not_sharded",
            f"CREATE TABLE {world.schema}_not_sharded.beat (id INT PRIMARY KEY)",
            f"INSERT INTO {world.schema}_not_sharded.beat VALUES (1)",
        )
        # Lost again after BEGIN: the message names the trigger, and the same command continues.
        tell = functools.partial(distrust_after_begin, world)
        with pytest.raises(Halt, match=r"tr_2 cannot be created.*run switch again"):
            run_switch(world.settings, tell)
        world.trust_function_creators(TARGETS, on=True)
        run_switch(world.settings, nothing)
        assert world.open_shards() == set(TARGETS)


def demote(source: DatabaseFixture, late: Action, step: SwitchStep) -> None:
    """Let the source stop being the primary right before a step."""
    if step.action is late:
        set_read_only(source, on=True)


def set_read_only(database: DatabaseFixture, *, on: bool) -> None:
    """What a failover does to the server that was the primary."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL read_only = %s", (int(on),))


def test_a_trigger_is_tried_without_a_trace(database: DatabaseFixture) -> None:
    """B16: either family says before anything is stopped that it would reject a trigger."""
    schema = database.new_database()
    server = resharder_of(database, SOURCE)
    with database.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        cursor.execute("SET GLOBAL log_bin_trust_function_creators = ON")
        cursor.execute(
            f"CREATE DEFINER = {RESHARDER}@'%' TRIGGER tr AFTER DELETE ON t "
            "FOR EACH ROW SET @gone = OLD.id"
        )
        writes = ShardWrites(server, "ks", "r-trial", (f"{APP}@%",))
        found = list_triggers(writes.connection, {schema})
        assert trial_problems(writes, found) == []
        broken = [replace(found[0], body="SET @gone = OLD.nothing")]
        assert "Unknown column 'nothing'" in trial_problems(writes, broken)[0]
        cursor.execute("SET GLOBAL log_bin_trust_function_creators = OFF")
        try:
            assert "1419" in trial_problems(writes, found)[0]
        finally:
            cursor.execute("SET GLOBAL log_bin_trust_function_creators = ON")
        writes.close()
        cursor.execute("SHOW TABLES FROM _shardstream LIKE 'trigger%'")
        assert cursor.fetchall() == ()
        cursor.execute(f"DROP DATABASE {schema}")


@pytest.mark.full
def test_switch_refuses_what_is_not_ready(
    servers: list[DatabaseFixture],
    kafka: KafkaCluster,
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A8: no verify, an old one, rows that differ, a lag, an account that is missing: all named.

    So are tables that are not the same on both sides: DDL that has reached only one of them.
    """
    monkeypatch.setattr(opening, "READY_S_MAX", 0.0)  # no applier runs
    with split(servers, kafka, keyspace, appliers=False) as world:
        world.sources.last_seqs()
        with pytest.raises(UsageError) as caught:
            run_switch(world.settings, nothing)
        assert str(caught.value).count("not verified") == len(TARGETS)
        assert str(caught.value).count("lags: it has seq") == len(TARGETS)

        world.verified(3)
        strange = replace(world.settings, accounts=("nobody@%", f"{APP}@%"))
        with pytest.raises(UsageError) as caught:
            run_switch(strange, nothing)
        assert str(caught.value).count("3 rows that differ") == len(TARGETS)
        assert str(caught.value).count("there is no account nobody@%") == len(TARGETS) + 1
        assert world.open_shards() == {SOURCE}
        world.verified(0, age_s=25 * 3600)
        with pytest.raises(UsageError, match="verify is 25 hours old"):
            run_switch(world.settings, nothing)
        world.verified(0, ahead=10**6)
        with pytest.raises(UsageError, match="behind the position that verify compared"):
            run_switch(world.settings, nothing)
        with pytest.raises(UsageError, match=r"no reshard 'other'.*has: r-"):
            run_switch(replace(world.settings, reshard_id="other"), nothing)
        table = f"{world.schema}.t"
        statements(world.servers[SOURCE], f"CREATE TABLE {world.schema}.late (id INT PRIMARY KEY)")
        trigger = f"CREATE TRIGGER {world.schema}.tr BEFORE INSERT ON {table} FOR EACH ROW SET @a=1"
        event = f"CREATE EVENT {world.schema}.ev ON SCHEDULE EVERY 1 YEAR DO DELETE FROM {table}"
        statements(world.servers[min(TARGETS)], f"ALTER TABLE {table} ADD more INT", trigger, event)
        with pytest.raises(UsageError) as caught:
            run_switch(world.settings, nothing)
        assert str(caught.value).count(f"table {world.schema}.late is on") == len(TARGETS)
        assert str(caught.value).count(f"event {world.schema}.ev would write") == 1
        for text in ("is not defined as on the source: ", "has triggers (tr): drop them"):
            assert str(caught.value).count(f"table {table} {text}") == 1
        with pytest.raises(UsageError) as caught:
            run_switch(replace(world.settings, force=True), nothing)
        assert f"table {world.schema}" not in str(caught.value)


@pytest.mark.full
def test_a_table_that_is_emptied_after_end_is_seen_before_the_decision(
    mariadb_servers: list[DatabaseFixture],
    kafka: KafkaCluster,
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A6: TRUNCATE by an account that was not locked, behind END, keeps BEGIN from being written.

    It is no row, so the producer goes on; the appliers stop, and `switch` does not decide.
    """
    monkeypatch.setattr(executor, "AWAIT_S_MAX", 4.0)
    with split(mariadb_servers, kafka, keyspace, appliers=False) as world:
        appliers = [
            RunningApplier(
                ApplierSettings(world.plan, world.settings.server_of(t), world.settings.kafka)
            )
            for t in TARGETS
        ]
        world.wait_applied()
        world.verified(0)

        insert = ShardWrites.insert

        def insert_and_empty(writes: ShardWrites, row: JournalRow, shards: tuple[str, str]) -> None:
            insert(writes, row, shards)
            if row.kind is JournalKind.END:
                statements(world.servers[SOURCE], f"TRUNCATE TABLE {world.schema}.t")

        monkeypatch.setattr(ShardWrites, "insert", insert_and_empty)
        with pytest.raises(Halt, match="the appliers, which stop where one changed or emptied a"):
            run_switch(world.settings, nothing)

        assert all(isinstance(applier.wait_error(), DefinitionChanged) for applier in appliers)
        assert all(marks(world, shard) == [] for shard in TARGETS)
        with pytest.raises(Retry, match=r"no broker\. Writes may be stopped: .* reshard status ks"):
            run_cancel(world.settings, kafka_is_away)
        run_cancel(world.settings, nothing)
        assert world.open_shards() == {SOURCE}


def kafka_is_away(_step: SwitchStep) -> None:
    """Fail as a step does that no broker answers."""
    raise Retry("no broker")
