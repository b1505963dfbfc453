from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from event_token import KeyRange, ShardPosition, StreamPosition
from shardstream.status.keyspace_report import headline, keyspace_text, readable
from shardstream.status.refresh import next_stops
from tests.topics.fleet.looks import SECOND_US, shard_look
from topics.fleet.view import (
    HOPS_MAX,
    Cause,
    KeyspaceView,
    ShardCondition,
    ShardEnds,
    StoppedWrites,
    keyspace_view,
    written_at_us,
)
from topics.keyspace.topology import ReshardEntry, ReshardState, ShardEntry, ShardState, Topology
from topics.named_readers import NamedReader, ReaderRecord
from topics.progress.copy_topic import CopyState, TableCopy
from topics.progress.record import BinlogReach, LastDdl, StopReason

NOW_US = 1_700_000_100_000_000


def look(*, head_s_ago: float = 0.2, written_s_ago: float = 0.1, seq: int = 7) -> ShardEnds:
    """The end of a shard's topics with this watermark, written then."""
    return shard_look(NOW_US, head_s_ago=head_s_ago, written_s_ago=written_s_ago, seq=seq)


def view(looks: dict[str, ShardEnds], *shards: ShardEntry) -> KeyspaceView:
    """The view of a keyspace of two shards, or of those."""
    entries = shards or (ShardEntry("-80"), ShardEntry("80-"))
    return keyspace_view(Topology("commerce", 3, entries), looks, NOW_US)


def printed(found: KeyspaceView, width: int = 200) -> str:
    """What `status` prints."""
    console = Console(width=width, record=True, file=StringIO())
    console.print(keyspace_text(found, 10))
    return console.export_text()


def test_a_producer_that_an_error_has_ended_is_named_with_its_reason() -> None:
    """At once, and with the place where the runbook says what to do."""
    ended = look()
    assert ended.progress is not None
    command = "shardstream skip commerce 80- --gtid 1-2-3 --reason TEXT"
    reason = StopReason(NOW_US, "BinlogPurged", "db-b has purged binlogs", command=command)
    looks = {"-80": look(), "80-": replace(ended, progress=replace(ended.progress, stopped=reason))}

    found = view(looks)

    assert found.shards[1].condition is ShardCondition.SILENT
    assert found.held_by == ("80-",)
    assert headline(found, 10) == "commerce: 80- stopped 0 s ago: BinlogPurged"
    text = "no progress for 0 s, last from db-a:3306; db-b has purged binlogs [BinlogPurged]"
    assert found.causes == (
        Cause("80-", text, command, "BinlogPurged", when="If nothing else helps:"),
    )
    [stop] = next_stops((), found, NOW_US)
    assert (stop.reason, stop.error) == ("db-b has purged binlogs [BinlogPurged]", "BinlogPurged")


def test_a_terminal_shows_the_fix_whole() -> None:
    """The section of the error's class, and a command that no line break cuts."""
    gtids = ",".join(f"3e11fa47-71ca-11e1-9e33-c80aa942956{n}:1-9" for n in range(4))
    command = f"shardstream skip commerce 80- --lost {gtids} --reason TEXT"
    ended = look()
    assert ended.progress is not None
    reason = StopReason(NOW_US, "ServerBehindLog", "db-b lacks transactions", command=command)
    looks = {"-80": look(), "80-": replace(ended, progress=replace(ended.progress, stopped=reason))}
    console = Console(width=80, record=True, file=StringIO())

    console.print(keyspace_text(view(looks), 10), crop=False)
    shown = console.export_text()

    assert command in shown
    assert "docs/runbook.md#the-server-has-another-history" in "".join(shown.split())
    assert "only what is older than" in " ".join(shown.split())
    assert "If nothing else helps:" in " ".join(shown.split())
    assert "docs/runbook" not in printed(view({"-80": look(), "80-": look()}))


@pytest.mark.parametrize(
    ("restarts", "said"),
    [
        ((0, 0), "stopped 41 s ago: Halt"),
        ((10, 10), "start over for 41 s: Halt"),
        ((0, None), "have written nothing for 41 s: Halt"),
    ],
)
def test_several_shards_have_one_short_line(
    restarts: tuple[int | None, int | None], said: str
) -> None:
    """It is as true of each of them; what differs is said below it."""
    looks = {}
    for shard, times in zip(("-80", "80-"), restarts, strict=True):
        ended = look(head_s_ago=41, written_s_ago=41)
        assert ended.progress is not None
        reason = None if times is None else StopReason(NOW_US, "Halt", "a reason", times)
        looks[shard] = replace(ended, progress=replace(ended.progress, stopped=reason))

    found = view(looks)

    assert headline(found, 10) == f"commerce: -80, 80- {said}"
    assert [cause.shard for cause in found.causes] == ["-80", "80-"]
    # A producer that starts over still runs; one that has ended needs its cause fixed first.
    assert restarts[0] or found.causes[0].when == "Once its cause is fixed:"
    commands = [cause.command for cause in found.causes]
    assert commands[0] == ("" if restarts[0] else "shardstream produce commerce -80")


def test_a_terminal_of_80_columns_cuts_nothing_off() -> None:
    """Numbers, headings and the server with its port are whole."""
    found = printed(view({"-80": look(seq=1_234_567), "80-": look()}), width=80)

    assert "…" not in found
    for text in ("per s", "source lag", "1,234,567", "db-a:3306", "progress"):
        assert text in found


def test_how_long_producers_may_be_off_is_told() -> None:
    """From the oldest binlog to the last write, the shortest first; then for how long one is."""
    reaches = {
        "-80": (look(), BinlogReach(NOW_US - 11_400 * SECOND_US, 604_800)),
        "80-": (look(written_s_ago=1_200), BinlogReach(NOW_US - 1_260 * SECOND_US, 0)),
    }
    looks = {}
    for shard, (ends, reach) in reaches.items():
        assert ends.progress is not None
        looks[shard] = replace(ends, progress=replace(ends.progress, binlogs=reach))

    found = view(looks)

    assert [shard.off_ms_max for shard in found.shards] == [11_399_900, 60_000]
    shortest, longest = (line for line in printed(found).splitlines() if "may be off" in line)
    assert shortest == (
        "the producer of 80- may be off for 1 min: so far back the binlogs of db-a:3306 reach, and "
        "nothing keeps them: see shardstream preflight; it has been off for 20 min"
    )
    assert longest == (
        "the producer of -80 may be off for 3 h 9 min: so far back the binlogs of db-a:3306 reach, "
        "and are kept for 7 d"
    )
    assert view({"-80": look(), "80-": look()}).shards[0].off_ms_max is None


def test_the_last_ddl_of_each_shard_is_told() -> None:
    """The newest one first, with its kind and table."""
    looks = {"-80": look(), "80-": look()}
    for i, (shard, found) in enumerate(looks.items()):
        assert found.progress is not None
        ddl = LastDdl(NOW_US + i * SECOND_US, "ALTER TABLE", "shop.orders")
        looks[shard] = replace(found, progress=replace(found.progress, ddl=ddl))

    lines = [line for line in printed(view(looks)).splitlines() if "DDL" in line]

    assert [line.rpartition(",")[0] for line in lines] == [
        "last DDL on 80-: ALTER TABLE shop.orders",
        "last DDL on -80: ALTER TABLE shop.orders",
    ]


def test_the_frontier_is_the_lowest_watermark() -> None:
    """What can be read ends where the shard that is furthest behind is."""
    found = view({"-80": look(head_s_ago=4), "80-": look()})

    assert found.frontier_us == NOW_US - 4 * SECOND_US
    assert found.behind_ms == 4_000
    assert found.held_by == ()
    assert not found.is_held_back(30_000)
    assert [s.condition for s in found.shards] == [ShardCondition.SERVING] * 2


def test_a_silent_shard_is_named() -> None:
    """A producer that has written nothing for long holds readers back, and the others do not."""
    found = view({"-80": look(), "80-": look(head_s_ago=41, written_s_ago=41)})

    assert found.held_by == ("80-",)
    assert found.reason == "has written nothing for 41 s"
    text = "no progress for 41 s, last from db-a:3306"
    assert found.causes == (Cause("80-", text, "shardstream produce commerce 80-"),)
    assert found.is_held_back(30_000)
    assert found.shards[1].condition is ShardCondition.SILENT
    assert found.shards[1].records_per_s == 0


def test_a_shard_without_a_producer_is_named() -> None:
    """Before the first progress nothing can be read, whatever the others do."""
    found = view({"-80": look()})

    assert found.frontier_us is None
    assert found.held_by == ("80-",)
    assert found.is_held_back(10**9)


def test_a_producer_that_catches_up_is_named() -> None:
    """A shard that advances far behind the others is late, not silent."""
    found = view({"-80": look(), "80-": look(head_s_ago=600)})

    assert found.held_by == ("80-",)
    assert found.reason == "is still reading what was committed 600 s ago"
    [cause] = found.causes
    assert (cause.command, cause.alert) == ("", "FrontierStuck")


def test_targets_and_sources_of_reshards_hold_nothing_back() -> None:
    """Readers wait neither for a target that is being filled nor for a source that has ended."""
    entries = (
        ShardEntry("-80"),
        ShardEntry("80-"),
        ShardEntry("-40", ShardState.TARGET),
        ShardEntry("80-c0", ShardState.RETIRED),
    )
    old = look(head_s_ago=9_000, written_s_ago=9_000)

    found = view({"-80": look(), "80-": look(), "-40": old, "80-c0": old}, *entries)

    assert found.held_by == ()
    assert {s.shard: s.condition for s in found.shards} == {
        "-40": ShardCondition.FILLING,
        "-80": ShardCondition.SERVING,
        "80-": ShardCondition.SERVING,
        "80-c0": ShardCondition.ENDED,
    }


def test_only_what_is_under_way_is_shown() -> None:
    """Copies that run or failed, and reshards that are not completed."""
    copies = tuple(
        TableCopy("shop", state.value, "id", state, NOW_US, NOW_US)
        for state in (CopyState.COPYING, CopyState.FAILED, CopyState.COMPLETED)
    )
    reshards = tuple(
        ReshardEntry(state.value, ("-",), ("-80", "80-"), state.value)
        for state in (ReshardState.COMPLETED, ReshardState.SWITCHED)
    )
    entries = (ShardEntry("-80"), ShardEntry("80-"))
    topology = Topology("commerce", 1, entries, reshards=reshards)
    first = look()

    found = keyspace_view(
        topology,
        {"-80": ShardEnds(first.progress, first.written_us, copies=copies), "80-": look()},
        NOW_US,
    )

    assert [(shard, copy.state) for shard, copy in found.copies] == [
        ("-80", CopyState.COPYING),
        ("-80", CopyState.FAILED),
    ]
    assert [entry.state for entry in found.reshards] == [ReshardState.SWITCHED.value]


def test_a_head_stands_in_for_a_servers_clock_that_is_ahead() -> None:
    """A dead producer is silent, also if its server's clock is an hour ahead."""
    progress = look(head_s_ago=60).progress
    assert progress is not None

    ahead = replace(progress, server_time_us=NOW_US + 3_600 * SECOND_US)
    behind = replace(progress, server_time_us=NOW_US - 3_600 * SECOND_US)
    near = replace(progress, server_time_us=NOW_US + SECOND_US)

    assert written_at_us(ahead, NOW_US) == progress.head_us
    assert written_at_us(behind, NOW_US) == progress.head_us
    assert written_at_us(near, NOW_US) == near.server_time_us


def reader(
    name: str, frontier_s_ago: float, seqs: dict[str, int], host: str = "app-1"
) -> ReaderRecord:
    """What a reader reported four seconds ago."""
    position = StreamPosition(
        3,
        NOW_US - round(frontier_s_ago * SECOND_US),
        {shard: ShardPosition(9, seq, None) for shard, seq in seqs.items()},
    )
    said_us = NOW_US - 4 * SECOND_US
    return ReaderRecord(name, host, position, KeyRange.parse("-"), host, "0.1.0", said_us, 2)


def test_readers_are_shown_with_their_lag() -> None:
    """Behind the frontier in time, and behind each log in events; never a negative lag."""
    shards = (ShardEntry("-80"), ShardEntry("80-"))
    audit = reader("audit", 0, {"-80": 9, "80-": 7})
    billing = reader("billing", 12, {"-80": 4, "80-": 7, "gone": 1})
    readers = (NamedReader(audit), NamedReader(billing, (reader("billing", 3, {}, "app-2"),)))

    found = keyspace_view(
        Topology("commerce", 3, shards),
        {"-80": look(head_s_ago=2), "80-": look()},
        NOW_US,
        readers,
    )

    ahead, behind = found.readers
    assert (ahead.name, ahead.behind_ms, ahead.others) == ("audit", 0, ())
    assert ahead.events_behind == {"-80": 0, "80-": 0}
    assert (behind.behind_ms, behind.said_ms, behind.failed) == (10_000, 4_000, 2)
    assert behind.events_behind == {"-80": 3, "80-": 0}
    assert StreamPosition.from_string(behind.position) == billing.position
    assert behind.others == ("app-2 (0.1.0)",)


def test_appliers_tell_how_far_targets_are() -> None:
    """By their last report; silent ones are behind by all of the time since. None is a reader."""
    reshard = ReshardEntry("r1", ("-",), ("-80", "80-", "80-.2"), ReshardState.RUNNING.value)
    shards = (ShardEntry("-"), *(ShardEntry(name, ShardState.TARGET) for name in reshard.targets))
    low, high = reader("reshard/r1/-80", 6, {"-": 9}), reader("reshard/r1/80-", 6, {"-": 9})
    old = replace(high, at_us=NOW_US - 60 * SECOND_US)
    over = reader("reshard/r0/-", 6, {"-": 9})

    found = keyspace_view(
        Topology("commerce", 3, shards, reshards=(reshard,)),
        {"-": look()},
        NOW_US,
        tuple(map(NamedReader, (low, old, over))),
    )
    text = printed(found)

    assert [(a.target, a.behind_ms, a.is_silent) for a in found.appliers] == [
        ("-80", 2_000, False),
        ("80-", 6_000, True),
    ]
    assert found.readers == ()
    assert "reshard r1: -80 is 2.0 s behind its sources, as its applier reported 4.0 s ago" in text
    said = "80- is 6.0 s behind its sources: its applier on app-1 last reported 60.0 s ago"
    assert f"{said}; if it has ended, run shardstream reshard run commerce r1 80-" in text
    assert "80-.2: its producer has not run yet; run shardstream produce commerce 80-.2" in text
    missing = "no applier has reported; run shardstream reshard run commerce r1 80-.2"
    assert f"80-.2 is not being filled: {missing}" in text


def test_without_a_frontier_no_lag_in_time_is_known() -> None:
    """While a shard has no progress, a reader is behind by an unknown time."""
    found = keyspace_view(
        Topology("commerce", 3, (ShardEntry("-"),)),
        {},
        NOW_US,
        (NamedReader(reader("audit", 5, {"-": 9})),),
    )

    assert found.readers[0].behind_ms is None


def test_since_when_readers_are_held_back() -> None:
    """From the last progress of a silent shard, still while it catches up, until it has."""
    shards = (ShardEntry("-80"), ShardEntry("80-"))
    topology = Topology("commerce", 3, shards)
    silent = {"-80": look(), "80-": look(head_s_ago=60, written_s_ago=41)}
    late = {"-80": look(), "80-": look(head_s_ago=60)}

    first = keyspace_view(topology, silent, NOW_US)
    second = keyspace_view(topology, late, NOW_US, before=first)
    over = keyspace_view(topology, {"-80": look(), "80-": look()}, NOW_US, before=second)
    new = keyspace_view(topology, late, NOW_US, before=over)
    never = keyspace_view(topology, {"-80": look()}, NOW_US)

    since_us = NOW_US - 41 * SECOND_US
    assert [first.held_since_us, second.held_since_us] == [since_us, since_us]
    assert over.held_since_us is None
    assert [new.held_since_us, never.held_since_us] == [NOW_US, None]
    assert readable(second).startswith("readers are held back since 2023-11-14T22:14:19.000Z; only")


def test_the_last_hops_are_shown_in_their_order() -> None:
    """Reshards without a hop time have not hopped, and of many only the last are shown."""
    reshards = tuple(
        ReshardEntry(f"r{n}", ("-",), ("-80", "80-"), ReshardState.COMPLETED.value, hop_us)
        for n, hop_us in enumerate([*range(2 * HOPS_MAX, 0, -1), None])
    )
    topology = Topology("commerce", 9, (ShardEntry("-80"), ShardEntry("80-")), reshards=reshards)

    found = keyspace_view(topology, {}, NOW_US)

    times = [entry.hop_time_us for entry in found.hops]
    assert times == list(range(HOPS_MAX + 1, 2 * HOPS_MAX + 1))


@pytest.mark.parametrize("state", list(ReshardState))
def test_writes_are_stopped_from_the_first_end_of_a_running_reshard(state: ReshardState) -> None:
    """Only sources with END, and only until the topology says that the reshard has switched."""
    entry = ReshardEntry("merge", ("-80", "80-"), ("-",), state.value)
    topology = Topology("commerce", 3, (ShardEntry("-80"), ShardEntry("80-")), reshards=(entry,))
    ended = {
        "-80": replace(look(), ended_us={"merge": NOW_US - 5, "other": 1}),
        "80-": replace(look(), ended_us={"merge": NOW_US - 9}),
    }

    both = keyspace_view(topology, ended, NOW_US).stopped
    one = keyspace_view(topology, {**ended, "80-": look()}, NOW_US).stopped

    if state is ReshardState.RUNNING:
        assert both == (StoppedWrites("merge", ("-80", "80-"), NOW_US - 9),)
        assert one == (StoppedWrites("merge", ("-80",), NOW_US - 5),)
    else:
        assert (both, one) == ((), ())
