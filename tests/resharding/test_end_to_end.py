"""An operator's reshards, by commands on real servers, while an application writes."""

import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from event_token import ShardName
from resharding.switch.decision import Action
from shardstream.local.kafka_cluster import KafkaCluster
from sinks.lake.change_log.reading import check_changelog, replay_changelog
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.servers.replication import statements
from tests.resharding.application import write_old_rows
from tests.resharding.flow import Flow, Reader, flow, reading, wait_read
from tests.resharding.operating import (
    Application,
    complete,
    create,
    create_arguments,
    follow,
    frozen_switch,
    killed_switch,
    switch_over,
    verify,
    wakes_for_nothing,
)
from tests.resharding.shards import checkpoint_seqs, fresh_schema
from tests.resharding.stream_checks import check_order, check_origins, replayed, served_part
from tests.resharding.writers import USERS, at_work, make_tables, rows_of, shard_of
from tests.shardstream.command_line import Background
from tests.waiting import wait_for
from topics.keyspace.topology import ReshardState
from topics.records.vevent import VEvent
from topics.stream.subscriber import StreamSubscriber

pytestmark = pytest.mark.full

APPLIER_KILLS = 2
SEED = 20261121
FENCED_STATUS = 3


class ChangeLog:
    """`shardstream changelog`, killed and restarted."""

    def __init__(self, keyspace: Flow) -> None:
        self.path = str(keyspace.folder / "log")
        self._keyspace = keyspace
        self._arguments = ("changelog", keyspace.keyspace, "--target", self.path)
        self._running = self._start()

    def _start(self) -> Background:
        return self._keyspace.start(*self._arguments)

    def wait_rows(self, rows: int) -> None:
        """Wait until the table has that many rows."""

        def has_rows(running: Background) -> bool:
            return bool(running.lines) and running.lines[-1]["rows"] >= rows

        self._running.wait_for(f"{rows} rows", has_rows)


def test_split_and_merge_under_load_with_kills(
    clean_servers: list[DatabaseFixture],
    kafka: KafkaCluster,
    keyspace: str,
    tmp_path: Path,
) -> None:
    """A shard is split and merged back while four writers write and everything gets killed.

    A subscriber and a Spark change log receive every change once and in order; replaying them gives
    what the last server holds, and everything that was acknowledged is there.
    """
    a, b, c = clean_servers
    servers = {"-": a, "-80": b, "80-": c, "70-": c, "-.2": a}
    schema = fresh_schema()
    make_tables(a, schema)
    write_old_rows(a, schema)
    world = {"schema": schema, "servers": servers, "first": ("-",)}
    with flow(tmp_path, kafka, keyspace, **world) as played:
        played.produce("-")
        with reading(played.client, keyspace) as reader:
            changelog = ChangeLog(played)
            application = Application(played, has_moves=True)
            with at_work(application.writers):
                refuse_bad_input(played)
                split_with_kills(played, application, reader, changelog)
                statements(a, f"DROP DATABASE {schema}", "DROP DATABASE _shardstream")
                merge_with_kills(played, application, reader)
            wait_read(played, reader)
        changelog.wait_rows(len(reader.events))
        check_one_who_was_away(played, reader.events)

        held = rows_of({"-.2": a}, schema)
        logs = {shard: played.log(shard) for shard in ("-", "-80", "80-", "-.2")}
        check_order(reader.events, logs)
        assert replayed(reader.events) == held
        assert all(check_origins(served_part(logs["-"]), logs[s]) > 100 for s in ("-80", "80-"))
        assert check_origins(served_part(logs["-80"]) + served_part(logs["80-"]), logs["-.2"]) > 100
        assert reader.starts > 2
        assert all(writer.refusals for writer in application.writers)
        check_change_log(changelog.path, len(reader.events), held, schema)


def test_two_become_three_on_mariadb(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str, tmp_path: Path
) -> None:
    """A reshard of two shards is cancelled after END and repeated, with other cuts.

    A subscriber receives every change once and in order; replaying them gives the servers' rows.
    """
    halves, first, thirds = ("-80", "80-"), ("-40", "40-"), ("-55", "55-aa", "aa-")
    shards = (*halves, *thirds)
    servers = dict(zip(shards, start_mariadb.together(len(shards)), strict=True))
    servers |= {name: servers[again] for name, again in zip(first, thirds, strict=False)}
    schema = fresh_schema()
    for half in halves:
        make_tables(servers[half], schema)
        write_old_rows(servers[half], schema, within=ShardName.parse(half).key_range)
    world = {"schema": schema, "servers": servers, "first": halves}
    with flow(tmp_path, kafka, keyspace, **world) as played:
        played.produce(*halves)
        # Times are whole seconds here: moves between shards would have no order.
        application = Application(played, has_moves=False)
        with reading(played.client, keyspace) as reader:
            with at_work(application.writers):
                cancel_behind_end(played, application, halves, first, thirds)
                follow(played, "thirds", halves, thirds)
                switch_over(played, application, "thirds", thirds)
            wait_read(played, reader)

        held = rows_of({shard: servers[shard] for shard in thirds}, schema)
        logs = {shard: played.log(shard) for shard in shards}
        check_order(reader.events, logs)
        assert replayed(reader.events) == held
        sources = [event for shard in halves for event in served_part(logs[shard])]
        assert all(check_origins(sources, logs[shard]) > 100 for shard in thirds)


def cancel_behind_end(
    keyspace: Flow,
    application: Application,
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    later: tuple[str, ...],
) -> None:
    """`cancel` right before BEGIN: the sources continue to serve; the switch changes nothing.

    Before it a row of a target is changed by hand: these logs are not looked at for origins.

    `later`: targets of the next reshard, which takes their servers.
    """
    follow(keyspace, "first", sources, targets)
    find_difference(keyspace, "first", targets)
    frozen = frozen_switch(keyspace, "first", "--force")
    said = keyspace.reshard("status").stdout
    assert all(f"source {source}: writes were stopped, END at" in said for source in sources)
    assert said.count("its applier runs") == len(targets)
    assert f"shardstream reshard cancel {keyspace.keyspace} first goes back" in said
    done = keyspace.run("reshard", "cancel", keyspace.keyspace, "first")
    assert done.returncode == 0, done.stderr
    application.wait_writes(*sources)
    wakes_for_nothing(keyspace, frozen, (*sources, *targets))
    application.wait_writes(*sources)
    assert keyspace.serving() == list(sources)
    for target in targets:
        keyspace.kill("reshard", "run", keyspace.keyspace, "first", target)
        # Its log was taken from it.
        assert keyspace.wait_end("produce", keyspace.keyspace, target) == FENCED_STATUS
    assert "next: stop the producers and appliers of" in keyspace.reshard("status").stdout
    said = keyspace.refused("create", *create_arguments("thirds", sources, later))
    assert said.count("target of reshard first, which is CANCELLED") == len(targets)
    assert f"DROP DATABASE IF EXISTS `{keyspace.schema}`; DROP DATABASE IF EXISTS" in said
    for target in targets:
        statements(
            keyspace.servers[target],
            f"DROP DATABASE {keyspace.schema}",
            "DROP DATABASE _shardstream",
        )


def find_difference(keyspace: Flow, reshard_id: str, targets: tuple[str, ...]) -> None:
    """`verify` names a row that differs, and `switch` refuses until it is fixed."""
    target = targets[0]
    user = next(user for user in range(USERS) if shard_of(user, targets) == target)
    change = f"UPDATE {keyspace.schema}.sessions SET hits = %d WHERE user_id = {user}"
    change += " AND name = 's0'"
    statements(keyspace.servers[target], change % 77)
    done = keyspace.run("reshard", "verify", keyspace.keyspace, reshard_id)
    assert done.returncode == 1
    assert f"{keyspace.schema}.sessions user_id={user}, name=s0: it differs in hits" in done.stdout
    assert "verify found 1 rows that differ" in keyspace.refused("switch", reshard_id)
    statements(keyspace.servers[target], change % 0)


def check_one_who_was_away(keyspace: Flow, events: list[VEvent]) -> None:
    """A reader that was off during all reshards, whose first servers are gone, misses nothing."""
    at = len(events) // 10
    position = events[at].position
    assert position is not None
    assert events[at].shard == "-"
    with StreamSubscriber(keyspace.keyspace, "-", position, config=keyspace.client) as late:
        found = list(itertools.islice(late, len(events) - at - 1))
    assert [(e.shard, e.seq) for e in found] == [(e.shard, e.seq) for e in events[at + 1 :]]


def refuse_bad_input(keyspace: Flow) -> None:
    """Ranges that overlap, tables that cannot be resharded: all is said, nothing is changed."""
    before = keyspace.topology()
    source, target = keyspace.servers["-"], keyspace.servers["80-"]
    said = keyspace.refused("create", *create_arguments("bad", ["-"], ["-80", "70-"]))
    assert "a gap or an overlap" in said
    schema = keyspace.schema
    statements(source, f"CREATE TABLE {schema}.strangers (id INT PRIMARY KEY)")
    statements(
        target,
        f"CREATE DATABASE {schema}",
        f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY)",
        f"INSERT INTO {schema}.orders VALUES (1)",
    )
    said = keyspace.refused("create", *create_arguments("bad", ["-"], ["-80", "80-"]))
    assert said.startswith("error: ")
    for text in ("strangers has no vindex", "orders is not empty", "orders is not defined as on"):
        assert f"{schema}.{text}" in said
    assert keyspace.topology() == before
    statements(target, f"DROP DATABASE {schema}")
    statements(source, f"DROP TABLE {schema}.strangers")


def split_with_kills(
    keyspace: Flow, application: Application, reader: Reader, changelog: ChangeLog
) -> None:
    """`-` becomes `-80` and `80-`; every process dies once or more."""
    targets = ("-80", "80-")
    dice = random.Random(SEED)
    application.wait_writes("-")
    create(keyspace, "split", ("-",), targets)
    said = keyspace.refused("switch", "split")
    assert said.count("not verified: run shardstream reshard verify") == len(targets)
    assert said.count("lags: it has seq") == len(targets)

    keyspace.kill("produce", keyspace.keyspace, "-")
    keyspace.start("produce", keyspace.keyspace, "-")
    for _ in range(APPLIER_KILLS):
        before = [checkpoint_seqs(keyspace.servers[t], "split") for t in targets]
        keyspace.apply("split", *targets)
        wait_for(
            "they apply",
            lambda before=before: all(  # type: ignore[misc]
                checkpoint_seqs(keyspace.servers[t], "split") != then
                for t, then in zip(targets, before, strict=True)
            ),
        )
        time.sleep(dice.uniform(0, 0.5))  # when they are killed is left to chance
        for target in targets:
            keyspace.kill("reshard", "run", keyspace.keyspace, "split", target)
    reader.restart()
    keyspace.kill("produce", keyspace.keyspace, "80-")
    keyspace.produce("80-")
    keyspace.apply("split", *targets)
    keyspace.wait_copied("split", ("-",), targets)
    status = json.loads(keyspace.reshard("status", "--json").stdout)
    assert (status["reshard_id"], status["state"]) == ("split", ReshardState.RUNNING.value)
    assert all(status["target_states"][target]["applier_runs"] for target in targets)
    assert status["next"] == f"shardstream reshard verify {keyspace.keyspace} split"
    switch_over(keyspace, application, "split", targets)
    reader.restart()
    complete(keyspace, "split", ("-",), targets)


def merge_with_kills(keyspace: Flow, application: Application, reader: Reader) -> None:
    """`-80` and `80-` become `-.2`; `switch` dies again and again, and one wakes late."""
    sources, targets = ("-80", "80-"), ("-.2",)
    follow(keyspace, "merge", sources, targets)
    verify(keyspace, "merge", targets)
    steps = killed_switch(keyspace, "merge", Action.WRITE_END.value)
    assert list(dict.fromkeys(steps)) == ["stop writes (-80)", "stop writes (80-)"]
    killed_switch(keyspace, "merge", "2")  # between the two ENDs
    reader.restart()
    frozen = frozen_switch(keyspace, "merge")
    steps = killed_switch(keyspace, "merge", Action.WRITE_BEGIN.value)
    steps += killed_switch(keyspace, "merge", Action.OPEN_WRITES.value)
    # Writes are stopped since long; a session that is just about to connect is no writer.
    steps = [step for step in steps if not step.startswith(Action.STOP_WRITES.value)]
    assert steps == ["decide", "write BEGIN (-.2)", "change the topology"]
    keyspace.reshard("switch", "merge")
    application.wait_writes(*targets)

    wakes_for_nothing(keyspace, frozen, (*sources, *targets))
    assert "earlier run" in keyspace.reshard("switch", "merge").stdout
    application.wait_writes(*targets)
    complete(keyspace, "merge", sources, targets)


def check_change_log(path: str, changes: int, held: dict[str, Any], schema: str) -> None:
    """The table has every record once and in order, and replayed it is what the server holds."""
    report = check_changelog(path)
    assert (report.changes, report.lost, report.repeated) == (changes, 0, 0)
    assert report.out_of_order == 0
    tables = replay_changelog(path)
    for name, rows in held.items():
        found = [tuple(row.values()) for row in tables[schema, name].rows()]
        texts = [tuple(str(value) for value in row[1:]) for row in rows]
        assert sorted(tuple(map(str, row)) for row in found) == sorted(texts)
