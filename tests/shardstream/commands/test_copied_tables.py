"""How far a sink is with copies: rows, share and time left, as its status lines show them."""

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from shardstream.commands.sinks.progress import (
    MARKS_MAX,
    CopiedTable,
    CopyBars,
    CopyHistory,
    SinkRates,
    copy_text,
    unread_copies,
)
from topics.progress.copy_topic import CopyState, TableCopy

BEGUN = TableCopy("shop", "orders", "1", CopyState.COPYING, 0, 0, begun_seq=101)
RUNNING = replace(
    BEGUN, key=("id",), rows=400, rows_read=400, rows_estimated=1_000, rows_per_s=50.0, seq=501
)
DONE = replace(RUNNING, state=CopyState.COMPLETED, rows=1_200, rows_read=1_200, seq=1_302)
OTHER = replace(DONE, copy_id="2", rows=300, rows_read=300, begun_seq=1, seq=301)


def history(*copies: TableCopy) -> CopyHistory:
    """A shard whose copy topic has these records."""
    found = CopyHistory()
    for copy in copies:
        found.add(copy)
    return found


def looked(
    shards: dict[str, CopyHistory],
    seqs: dict[str, int],
    rates: SinkRates | None = None,
    at_s: float = 0.0,
) -> list[CopiedTable]:
    """What a sink of all tables shows."""
    return unread_copies(shards, seqs, (), rates or SinkRates(), at_s)


def test_rows_are_those_before_the_place_that_the_sink_has_read() -> None:
    """Known places are exact, also after a restart; between two of them rows lie evenly."""
    shards = {"-": history(BEGUN, RUNNING, DONE)}

    found = {seq: looked(shards, {"-": seq}) for seq in (0, 100, 301, 501, 1_301, 1_302, 9_999)}

    assert [each[0].rows for each in found.values() if each] == [0, 0, 200, 400, 1_199]
    assert found[1_302] == found[9_999] == []


def test_a_copy_that_ended_before_the_sink_began_is_worked_off() -> None:
    """Compaction has left its last record alone: the share follows the place in the log."""
    shards = {"-": history(DONE)}

    [copied] = looked(shards, {"-": 100 + 601})

    assert (copied.state, copied.rows, copied.rows_total, copied.percent) == (
        "copied",
        600,
        1_200,
        50,
    )


def test_shards_without_the_table_do_not_count() -> None:
    """A shard that has no copy of a table, or that the sink does not read, is not waited for."""
    shards = {"-80": history(DONE), "80-": CopyHistory(), "gone": history(OTHER)}

    [copied] = looked(shards, {"-80": 0, "80-": 0})

    assert copied.rows_total == 1_200
    assert looked(shards, {"-80": 1_302, "80-": 0}) == []


def test_shards_are_added_up() -> None:
    """A table is one line: its rows on all shards, until all of them were read."""
    shards = {"-80": history(DONE), "80-": history(OTHER)}

    [copied] = looked(shards, {"-80": 1_302, "80-": 1})

    assert (copied.rows, copied.rows_total, copied.percent) == (1_200, 1_500, 80)


@pytest.mark.parametrize(
    ("copy", "total", "percent"),
    [
        (RUNNING, 1_000, 40),
        (replace(RUNNING, rows_estimated=10), 400, 99),
        (replace(RUNNING, where="id > 7"), None, None),
        (replace(BEGUN, seq=101), None, None),
    ],
    ids=["estimated", "past_the_estimate", "condition", "before_the_first_chunk"],
)
def test_no_share_is_above_what_is_known(
    copy: TableCopy, total: int | None, percent: int | None
) -> None:
    """A wrong estimate never says that all is there, and none is told where nothing is known."""
    [copied] = looked({"-": history(BEGUN, copy)}, {"-": 501})

    assert (copied.rows_total, copied.percent, copied.seconds_left) == (total, percent, None)


def test_time_left_is_that_of_the_slower_one() -> None:
    """A sink that keeps up waits for the copy; one that does not, or a finished copy, by itself."""
    rates = SinkRates()
    running = {"-": history(BEGUN, RUNNING)}
    looked(running, {"-": 101}, rates, 0.0)
    looked({"-": history(BEGUN, RUNNING)}, {"-": 501}, rates, 4.0)

    [behind_copy] = looked(running, {"-": 501}, rates, 4.0)
    [stalled] = looked(running, {"-": 501}, rates, 40.0)
    [done] = looked({"-": history(BEGUN, RUNNING, DONE)}, {"-": 501}, rates, 4.0)
    [paused] = looked(
        {"-": history(BEGUN, RUNNING, replace(RUNNING, state=CopyState.PAUSED))},
        *({"-": 501}, rates, 4.0),
    )

    assert (behind_copy.rows_per_s, behind_copy.seconds_left) == (100, 12)  # 600 rows at 50/s
    assert (stalled.rows_per_s, stalled.seconds_left) == (10, 60)
    assert done.seconds_left == 8
    assert (paused.state, paused.seconds_left) == ("paused", None)


def test_a_new_copy_begins_at_zero() -> None:
    """A table that is copied again begins again, and so does its rate."""
    rates, seqs = SinkRates(), {"-": 1_301}
    again = replace(BEGUN, copy_id="2", begun_seq=1_400, key=("id",), rows_estimated=1_000)
    looked({"-": history(BEGUN, RUNNING, DONE)}, seqs, rates, 5.0)

    [copied] = looked({"-": history(BEGUN, RUNNING, DONE, again)}, seqs, rates, 6.0)

    assert (copied.rows, copied.rows_total, copied.rows_per_s) == (0, 1_000, 0)


def test_copies_that_ended_without_all_rows() -> None:
    """A failed copy is shown until it is resumed or cancelled, a cancelled one is not."""
    failed = replace(RUNNING, state=CopyState.FAILED)
    cancelled = replace(RUNNING, state=CopyState.CANCELLED)

    [copied] = looked({"-": history(BEGUN, RUNNING, failed)}, {"-": 9_999})

    assert (copied.state, copied.seconds_left) == ("failed", None)
    assert looked({"-": history(BEGUN, RUNNING, cancelled)}, {"-": 200}) == []
    assert looked({"-": history(replace(DONE, begun_seq=0, seq=0))}, {"-": 200}) == []


def test_other_tables_are_not_shown() -> None:
    """A sink of some tables does not wait for the copies of others."""
    shards, seqs = {"-": history(DONE)}, {"-": 0}

    assert unread_copies(shards, seqs, ("shop.users",), SinkRates(), 0.0) == []
    assert len(unread_copies(shards, seqs, ("shop.orders",), SinkRates(), 0.0)) == 1


@given(
    pieces=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=40),
    estimate=st.integers(0, 3_000),
    seqs=st.lists(st.integers(0, 4_000), min_size=1, max_size=20),
    is_complete=st.booleans(),
)
def test_progress_never_goes_back_and_never_ends_early(
    pieces: list[tuple[int, int]], estimate: int, seqs: list[int], *, is_complete: bool
) -> None:
    """Whatever the estimate: rows grow with the place, 0 to 99 %, and no time left is negative."""
    copy, found = replace(BEGUN, key=("id",), rows_estimated=estimate), history(BEGUN)
    for records, rows in pieces:
        seq = (copy.seq or copy.begun_seq) + records
        copy = replace(copy, seq=seq, rows_read=copy.rows_read + rows, rows_per_s=1.0)
        found.add(copy)
    if is_complete:
        found.add(replace(copy, state=CopyState.COMPLETED, seq=copy.seq or 102))
    rates, before = SinkRates(), 0
    for now_s, seq in enumerate(sorted(seqs)):
        for copied in looked({"-": found}, {"-": seq}, rates, float(now_s)):
            assert before <= copied.rows <= copy.rows_read
            assert copied.percent is None or 0 <= copied.percent <= 99
            assert copied.seconds_left is None or copied.seconds_left >= 0
            before = copied.rows


def test_long_copies_keep_a_bounded_number_of_places() -> None:
    """Places between others are dropped: the ends stay exact, and the rest within a piece."""
    found, pieces = history(BEGUN), 5 * MARKS_MAX
    for i in range(1, pieces + 1):
        found.add(replace(BEGUN, seq=101 + 10 * i, rows_read=9 * i))

    rows = [found.rows_read(("shop", "orders"), 101 + 10 * i) for i in (pieces, 4_000, 777)]

    assert rows[0] == 9 * pieces
    assert abs(rows[1] - 9 * 4_000) <= 9
    assert abs(rows[2] - 9 * 777) <= 9


def test_a_line_names_share_rate_and_time_left() -> None:
    """What is not known is left out."""
    copied = CopiedTable("shop.orders", "copied", 600, 1_200, 50.0, 12.0)

    assert copy_text(copied) == "copy of shop.orders: 50 % (50 rows/s, 0:00:12 left)"
    paused = replace(copied, state="paused", rows_total=None, rows_per_s=0.0, seconds_left=None)
    assert copy_text(paused) == "copy of shop.orders: 600 rows (paused)"
    assert copy_text(replace(paused, state="copied")) == "copy of shop.orders: 600 rows"


def test_bars_show_the_tables_that_are_left() -> None:
    """A terminal has a bar per table; it goes with the table."""
    out = io.StringIO()
    bars = CopyBars(Console(file=out, force_terminal=True, width=100))
    orders = CopiedTable("shop.orders", "copied", 600, 1_200, 50.0, 12.0)

    def shown(*tables: CopiedTable) -> str:
        before = out.tell()
        bars.show(tables)
        bars.refresh()
        return out.getvalue()[before:]

    both = shown(orders, CopiedTable("shop.users", "paused", 7, None))
    one = shown(replace(orders, rows=700))
    shown()

    for text in ("shop.orders", "50 %  600 rows  0:00:12 left", "shop.users", "7 rows  paused"):
        assert text in both
    assert "shop.users" not in one
    assert shown() == ""
