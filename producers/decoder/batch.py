"""What a decoder has produced since the last summary."""

from collections.abc import Sequence
from dataclasses import dataclass

from topics.progress.record import LastDdl, Mark


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """Whole transactions of the server whose records went to `produce` since the last summary.

    Without a record, `last_seq` is `first_seq - 1`; position and head may have moved all the same.
    `position`: GTID set executed up to and including the last complete transaction.
    `head_us`: the head (watermark): every later record has a timestamp >= head_us. A commit time
    beyond the producer's clock does not move it, so it may be below the last record's timestamp; a
    caller that promised more keeps that promise (`Decoder.advance_head`).
    `ticks`: (start of the 10 ms cell, seq of its first record), of cells that began here only.
    `mark`: the mark of a reshard that ends the batch; its `offset` is the seq of its record.
    `ddl`: the last DDL record of the batch. `rows_filtered`: rows that its filter rules left out.
    `prepared_us`: the times of the PREPAREs of XA transactions that wait for their decision.
    `gtid`, `last_commit_us`: the last transaction and its raw commit time; "" and 0 before the
    first. `binlog_pos`: where it begins in `binlog_file`.
    """

    first_seq: int
    last_seq: int
    position: str
    gtid: str
    head_us: int
    ticks: list[tuple[int, int]]
    last_commit_us: int
    binlog_file: str
    binlog_pos: int
    transactions: int
    mark: Mark | None = None
    ddl: LastDdl | None = None
    rows_filtered: int = 0
    prepared_us: Sequence[int] = ()
