"""Which copied rows may be written, whatever the order in which a server shows transactions."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from event_token import Flavor, parse_gtid_set
from producers.copy import chunk_reader, table_copier
from producers.copy.chunk import ChunkConnection, ChunkJob
from producers.copy.chunk_reader import ChunkReader
from tests.database_servers import DatabaseFixture
from tests.generated import examples
from tests.producers.copy.window_scene import LogTemplate, Rows, Scene
from tests.producers.servers.replication import executed, statements
from tests.producers.session.producing import server_of, settings_alone
from topics.records.vevent import Op

KEYS = st.integers(0, 5)
COMMIT = st.tuples(st.just("commit"), KEYS, KEYS | st.none())
ALONE = ("deliver", "show", "execute", "ask", "select", "hand_over", "write", "log_all", "alter")
STEPS = st.one_of(
    COMMIT,
    COMMIT,
    st.sampled_from([(step,) for step in ALONE]),
    st.tuples(st.sampled_from(["select", "chunk", "chunk"]), st.integers(0, 2)),
    st.sampled_from([("play", "show", "execute"), ("play", "write", "write")]),
)


@pytest.fixture(scope="module")
def template(mysql_a: DatabaseFixture) -> Iterator[LogTemplate]:
    """Packets of a real server, to be patched."""
    found = LogTemplate(mysql_a)
    yield found
    found.close()


def reads_of(scene: Scene) -> list[tuple[int, int]]:
    """The rows written as READ."""
    rows = [e.after for e in scene.log.events if e.op is Op.READ]
    return [(int(str(row["id"])), int(str(row["v"]))) for row in rows if row is not None]


@pytest.mark.parametrize("kept", [None, (0, *range(1, 60, 2))], ids=["all", "filtered"])
@pytest.mark.parametrize("by_snapshot", [False, True])
def test_any_order_gives_the_table(
    template: LogTemplate, kept: tuple[int, ...] | None, *, by_snapshot: bool
) -> None:
    """With any interleaving of changes, windows and visibility, no READ is stale, no row lost.

    With a filter rule that every other change crosses: what the rule keeps of the table.
    """

    @settings(max_examples=examples(200))
    @given(
        rows=st.dictionaries(KEYS, st.just(0), min_size=1, max_size=6),
        steps=st.lists(STEPS, max_size=40),
        notes_max=st.sampled_from([0, table_copier.PRUNE_KEYS]),
    )
    def runs(rows: Rows, steps: list[tuple[str, ...]], notes_max: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(table_copier, "PRUNE_KEYS", notes_max)
            scene = Scene(template, rows, by_snapshot=by_snapshot, kept=kept)
            for name, *arguments in steps:
                getattr(scene, name)(*arguments)
            scene.finish()
            scene.check()

    runs()


def test_row_changed_between_select_and_writing_is_left_out(template: LogTemplate) -> None:
    """Without remembered keys a stale row would be written: the SELECT saw 1 before it became 9."""
    check_first_left_out(Scene(template, {1: 0, 2: 0}))


def test_row_that_left_the_rule_is_not_brought_back(template: LogTemplate) -> None:
    """A change that the rule leaves out still removes its key from the chunk."""
    check_first_left_out(Scene(template, {1: 0, 2: 0, 3: 99}, kept=(0,)))


def check_first_left_out(scene: Scene) -> None:
    """Row 1 changes after the SELECT that saw it, so of rows 1 and 2 only 2 is written."""
    scene.play("ask", "select")
    scene.commit(1, 1)
    scene.play("show", "execute", "deliver", "hand_over", "write", "write")

    assert reads_of(scene) == [(2, 0)]
    scene.finish()
    scene.check()


def test_tables_that_no_snapshot_holds_wait_for_all_that_was_executed(
    template: LogTemplate,
) -> None:
    """MyISAM shows changes after the snapshot, so the snapshot's place is not enough."""
    scene = Scene(template, {1: 0, 2: 0}, by_snapshot=True)
    scene.show_at_once()
    scene.commit(1, 1)
    scene.play("show", "deliver")
    scene.commit(2, 2)
    scene.play("show", "ask")
    scene.select(1)
    scene.play("hand_over", "write")
    assert reads_of(scene) == []

    scene.play("deliver", "write")
    assert reads_of(scene) == [(1, 1)]
    scene.finish()
    scene.check()


def test_deleted_and_moved_rows_are_not_brought_back(template: LogTemplate) -> None:
    """Both images count: a changed row's old key, and a deleted row."""
    scene = Scene(template, {1: 0, 2: 0})
    scene.play("ask", "select")
    scene.commit(1, 5)
    scene.commit(2, None)
    scene.play("show", "show", "execute", "execute", "deliver", "deliver")
    scene.play("hand_over", "write", "write")

    assert reads_of(scene) == []
    scene.finish()
    scene.check()


def test_select_waits_for_what_the_log_has_said(template: LogTemplate) -> None:
    """Without the wait a row would be lost: the log has 1, the server does not show it yet."""
    for waits in (True, False):
        scene = Scene(template, {1: 0, 2: 0})
        scene.commit(1, 1)
        scene.play("deliver", "ask")
        scene.select(waits=waits)
        scene.play("hand_over", "write", "write")
        if waits:
            assert reads_of(scene) == []
            scene.finish()
            scene.check()
        else:
            with pytest.raises(AssertionError, match="stale"):
                scene.check()


@pytest.mark.parametrize("by_snapshot", [False, True])
def test_rows_wait_until_the_log_has_what_their_select_saw(
    template: LogTemplate, *, by_snapshot: bool
) -> None:
    """The hazard of no wait for *high*: rows of later on, and older changes of them behind."""
    scene = Scene(template, {1: 0, 2: 0}, by_snapshot=by_snapshot)
    for _ in range(3):
        scene.commit(1, 1)
        scene.play("show", "execute")
    scene.play("ask", "select", "hand_over")
    for _ in range(3):
        scene.play("write", "write")
        assert reads_of(scene) == []
        scene.deliver()
    scene.play("write", "write")

    # 1 is in the log by itself where the window counts from what the log had before the SELECT; a
    # snapshot's window counts from what it saw.
    assert reads_of(scene) == ([(1, 3), (2, 0)] if by_snapshot else [(2, 0)])
    changes = [e.op for e in scene.log.events if e.op is not Op.NONE]
    assert changes[:4] == [Op.UPDATE, Op.UPDATE, Op.UPDATE, Op.READ]
    scene.finish()
    scene.check()


def test_high_includes_what_the_select_saw(
    mysql_a: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row committed just before the SELECT is in the set that the log must reach (MyISAM)."""
    name = mysql_a.new_database()
    statements(mysql_a, f"CREATE TABLE {name}.t (id INT PRIMARY KEY) ENGINE = MyISAM")
    read = ChunkConnection.read

    def insert_and_read(*arguments: Any) -> Any:
        statements(mysql_a, f"INSERT INTO {name}.t VALUES (1)")
        return read(*arguments)

    monkeypatch.setattr(ChunkConnection, "read", insert_and_read)
    reader = ChunkReader(settings_alone(mysql_a), server_of(mysql_a))
    chunk = reader.read(ChunkJob(name, "t", "", None, True, 10, executed(mysql_a)))
    reader.close()

    assert chunk.part.rows.rows == 1
    assert parse_gtid_set(chunk.high, Flavor.MYSQL).includes(
        parse_gtid_set(executed(mysql_a), Flavor.MYSQL)
    )


def test_reader_waits_until_the_server_shows_the_position(
    mysql_a: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that must see a transaction is read only after that has been executed."""
    gtid = f"{uuid4()}:1"
    with mysql_a.one_table() as (name, cursor):

        def commit(_: float) -> None:
            """The reader's wait: meanwhile the transaction comes."""
            cursor.execute(f"SET gtid_next = '{gtid}'")
            cursor.execute("INSERT INTO t VALUES (1)")
            cursor.execute("SET gtid_next = 'AUTOMATIC'")

        clock = SimpleNamespace(monotonic=time.monotonic, sleep=commit)
        monkeypatch.setattr(chunk_reader, "time", clock)
        reader = ChunkReader(settings_alone(mysql_a), server_of(mysql_a))
        chunk = reader.read(ChunkJob(name, "t", "", None, True, 10, gtid))
        reader.close()

    assert chunk.part.rows.rows == 1


def test_read_may_be_ahead_of_its_change(template: LogTemplate) -> None:
    """A row visible before the executed set has it is READ first; both are upserts."""
    scene = Scene(template, {1: 0})
    scene.commit(2, 2)
    scene.commit(1, 3)
    scene.play("show", "show", "ask", "select", "hand_over", "write", "write")
    assert reads_of(scene) == [(2, 1), (3, 2)]

    scene.finish()
    changes = [e.op for e in scene.log.events if e.op is not Op.NONE]
    assert changes == [Op.READ, Op.READ, Op.INSERT, Op.UPDATE]
    scene.check()


def test_snapshot_counts_from_its_own_place(template: LogTemplate) -> None:
    """MariaDB's snapshot may precede the window's opening; changes in between count too."""
    scene = Scene(template, {1: 0, 2: 0}, by_snapshot=True)
    for key in (7, 1):
        scene.commit(key, key)
        scene.play("show", "deliver")
    scene.play("ask")
    scene.select(1)
    scene.play("hand_over", "write", "write")

    assert reads_of(scene) == [(2, 0)]
    scene.finish()
    scene.check()
