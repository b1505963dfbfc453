"""Where a shard's producer resumes, from its log and progress topic, or where it starts."""

from dataclasses import dataclass

from event_token import Flavor, GtidSet, parse_gtid_set
from event_token.errors import UsageError
from producers.errors import LogDisagrees
from topics.names import ShardTopics
from topics.progress.committed_tail import LogTail
from topics.progress.record import LastDdl, LastTransaction, Progress, Skipped, cell_start_us


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """What a producer takes over from its predecessor.

    `head_us`: the last head (watermark) promised; `clamp_us`: the earliest timestamp that a new
    record may bear, the last record's if that is later; `last_cell_us`: start of the grid cell of
    the log's last record. Each is -1 if there is none. `last`: None if it is not known.
    `identity`: that of the shard's servers, "" if the log holds none. `skipped`: its SKIP records.
    `ddl`: its last DDL record.
    """

    position: GtidSet
    next_seq: int
    end_offset: int
    head_us: int
    clamp_us: int
    last_cell_us: int
    last: LastTransaction | None = None
    identity: str = ""
    skipped: Skipped | None = None
    ddl: LastDdl | None = None


def resume_point(
    topics: ShardTopics, flavor: Flavor, progress: Progress | None, log: LogTail
) -> ResumePoint | None:
    """Combine progress and log; None for an empty log. LogDisagrees when they contradict."""
    if progress is None:
        if log.last is not None:
            raise LogDisagrees(
                f"{topics.log} ends with seq {log.last.seq} at offset {log.last.offset}, but "
                f"{topics.progress} is empty: one of them was deleted or recreated. Without the "
                "progress topic the log's position is unknown: restore it, or run shardstream "
                f"topics reset {topics.keyspace} {topics.shard}, and start a new log with a copy"
            )
        return None
    if Flavor(progress.flavor) is not flavor:
        raise UsageError(
            f"{topics.progress} was written from {progress.flavor}, but the settings say "
            f"{flavor.value}: a shard's log stays with one family of servers"
        )
    _check_agreement(topics, progress, log)
    clamp_us = progress.head_us
    last_cell_us = -1
    if log.last is not None:
        clamp_us = max(clamp_us, log.last.timestamp_us)
        last_cell_us = cell_start_us(log.last.timestamp_us)
    return ResumePoint(
        position=parse_gtid_set(progress.position, flavor),
        next_seq=progress.last_seq + 1,
        end_offset=progress.end_offset,
        head_us=progress.head_us,
        clamp_us=clamp_us,
        last_cell_us=last_cell_us,
        last=progress.last,
        identity=progress.identity,
        skipped=progress.skipped,
        ddl=progress.ddl,
    )


def _check_agreement(topics: ShardTopics, progress: Progress, log: LogTail) -> None:
    if log.agrees_with(progress):
        return
    if log.last is None:
        found = f"is empty and starts at offset {log.start_offset}"
    else:
        found = f"ends with seq {log.last.seq} at offset {log.last.offset}"
    raise LogDisagrees(
        f"{topics.log} {found}, but {topics.progress} says seq {progress.last_seq} at "
        f"offset {progress.end_offset - 1}: records were lost, or written by something else. "
        "Keep both topics and compare them with the binlog"
    )


def first_point(position: GtidSet, from_us: int = -1) -> ResumePoint:
    """Where an empty log starts: before seq 1, at offset 0.

    `from_us`: the time from which on it has everything, where the start names one; readers take
    times by grid cells.
    """
    begin_us = -1 if from_us < 0 else cell_start_us(from_us)
    return ResumePoint(position, 1, 0, begin_us, begin_us, -1)
