"""Where a producer goes on: decisions from what the log, its progress and the server say."""

from dataclasses import replace

import pytest

from databases.server_facts import ServerHistory
from event_token import Flavor, MariadbGtidSet, MysqlGtidSet, UsageError
from producers.errors import BinlogPurged, LogDisagrees, ReplicaBehindLog, ServerBehindLog
from producers.servers.choice import check_reachable
from producers.start.choose_start import ResumePoint, first_point, resume_point
from topics.names import ShardTopics
from topics.progress.committed_tail import LastRow, LogTail
from topics.progress.record import Progress, Tick

TOPICS = ShardTopics("commerce", "-80")
A = "896b8653-e543-11f1-95d8-02fc00000001"
PROGRESS = Progress(
    first_seq=8,
    last_seq=10,
    end_offset=14,
    flavor="mysql",
    position=f"{A}:1-4",
    head_us=1_700_000_000_123_456,
    ticks=(Tick(1_700_000_000_120_000, 12),),
    mark=None,
    server="db:3306",
    server_time_us=1_700_000_000_200_000,
    lag_ms=0,
)
LAST = LastRow(offset=13, seq=10, timestamp_us=1_700_000_000_123_456)


def point(progress: Progress | None, log: LogTail) -> object:
    """The resume point of a MySQL shard."""
    return resume_point(TOPICS, Flavor.MYSQL, progress, log)


def history(executed: str, purged: str = "") -> ServerHistory:
    """A MySQL server's history."""
    return ServerHistory(MysqlGtidSet.parse(executed), MysqlGtidSet.parse(purged))


def reach(position: str, there: ServerHistory, *, replica: bool = False) -> None:
    """Check a MySQL position against a server."""
    check_reachable(TOPICS, "db:3306", MysqlGtidSet.parse(position), there, replica=replica)


def test_agreeing_log_and_progress_give_the_point() -> None:
    """Position, next seq, end offset, promise and cell come from the last committed records."""
    found = resume_point(TOPICS, Flavor.MYSQL, PROGRESS, LogTail(0, LAST))

    assert found is not None
    assert str(found.position) == f"{A}:1-4"
    assert (found.next_seq, found.end_offset) == (11, 14)
    assert (found.head_us, found.clamp_us) == (PROGRESS.head_us, PROGRESS.head_us)
    assert found.last_cell_us == 1_700_000_000_120_000


def test_record_ahead_of_the_promise_raises_the_clamp_alone() -> None:
    """A record may lie beyond the head (a clock ahead); the promise stays what it was."""
    ahead = replace(LAST, timestamp_us=PROGRESS.head_us + 5)

    found = resume_point(TOPICS, Flavor.MYSQL, PROGRESS, LogTail(0, ahead))

    assert found is not None
    assert (found.head_us, found.clamp_us) == (PROGRESS.head_us, PROGRESS.head_us + 5)


def test_empty_log_has_no_point() -> None:
    """Nothing on either topic: the settings say where to start."""
    assert point(None, LogTail(0, None)) is None


def test_heartbeats_before_the_first_row_agree_with_an_empty_log() -> None:
    """A progress without a row so far needs no record in the log."""
    idle = replace(PROGRESS, first_seq=1, last_seq=0, end_offset=0, ticks=())

    found = resume_point(TOPICS, Flavor.MYSQL, idle, LogTail(0, None))

    assert found is not None
    assert (found.next_seq, found.last_cell_us) == (1, -1)


def test_an_empty_log_starts_with_seq_1_at_offset_0() -> None:
    """D8: nothing is promised and nothing clamped, and the first record opens its cell."""
    position = MysqlGtidSet.parse(f"{A}:1-7")

    found = first_point(position)

    assert found == ResumePoint(
        position=position,
        next_seq=1,
        end_offset=0,
        head_us=-1,
        clamp_us=-1,
        last_cell_us=-1,
    )


@pytest.mark.parametrize("start_offset", [14, 15])
def test_log_emptied_by_retention_agrees(start_offset: int) -> None:
    """The log starts at or past the end that the progress names: all its rows have aged out."""
    found = resume_point(TOPICS, Flavor.MYSQL, PROGRESS, LogTail(start_offset, None))

    assert found is not None
    assert found.next_seq == 11


@pytest.mark.parametrize(
    ("progress", "log", "said"),
    [
        (None, LogTail(0, LAST), "commerce.-80.progress is empty"),
        (PROGRESS, LogTail(0, None), "starts at offset 0"),
        (PROGRESS, LogTail(13, None), "starts at offset 13"),
        (
            replace(PROGRESS, first_seq=1, last_seq=1, end_offset=1),
            LogTail(0, None),
            "says seq 1 at offset 0",
        ),
        (PROGRESS, LogTail(0, replace(LAST, seq=9, offset=12)), "seq 9 at offset 12"),
        (PROGRESS, LogTail(0, replace(LAST, seq=11, offset=14)), "seq 11 at offset 14"),
        (PROGRESS, LogTail(0, replace(LAST, offset=12)), "seq 10 at offset 12"),
    ],
)
def test_contradiction_halts_and_names_both(
    progress: Progress | None, log: LogTail, said: str
) -> None:
    """Log and progress that cannot both be true stop the shard; neither is believed alone."""
    with pytest.raises(LogDisagrees) as raised:
        point(progress, log)

    assert said in str(raised.value)
    assert "commerce.-80" in str(raised.value)


def test_other_family_is_refused() -> None:
    """A shard that was written from MySQL is not continued from MariaDB."""
    with pytest.raises(UsageError, match="one family"):
        resume_point(TOPICS, Flavor.MARIADB, PROGRESS, LogTail(0, LAST))


def test_position_between_purged_and_executed_is_reachable() -> None:
    """The server still has what comes next, and has executed all that the log holds."""
    reach(f"{A}:1-5", history(f"{A}:1-9", f"{A}:1-5"))


def test_purged_transactions_are_named() -> None:
    """A server that dropped what comes next cannot go on: the missing GTIDs are said."""
    with pytest.raises(BinlogPurged, match=f"{A}:6-7"):
        reach(f"{A}:1-5", history(f"{A}:1-9", f"{A}:1-7"))


def test_primary_behind_the_log_halts_and_names_the_gtids() -> None:
    """A failover that lost transactions is not gone along with."""
    with pytest.raises(ServerBehindLog, match=f"{A}:8-9"):
        reach(f"{A}:1-9", history(f"{A}:1-7"))


def test_replica_behind_the_log_is_waited_for() -> None:
    """The same on a replica is a passing state."""
    with pytest.raises(ReplicaBehindLog, match=f"{A}:8-9"):
        reach(f"{A}:1-9", history(f"{A}:1-7"), replica=True)


def test_mariadb_position_of_a_split_domain_halts() -> None:
    """The same number by another server is another history."""
    there = ServerHistory(MariadbGtidSet.parse("0-2-7"), MariadbGtidSet())

    with pytest.raises(ServerBehindLog, match="0-1-7"):
        check_reachable(TOPICS, "db:3306", MariadbGtidSet.parse("0-1-7"), there, replica=False)
