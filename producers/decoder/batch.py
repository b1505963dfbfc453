"""What the decoder has produced since it was last asked."""

from dataclasses import dataclass

from topics.progress.record import Mark


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """Whole MySQL transactions that went to `produce` since the last summary.

    Without a record, `last_seq` is `first_seq - 1`; position and head may have moved all the same.
    `position`: GTID set executed up to and including the last complete transaction.
    `head_us`: every later record has a timestamp >= head_us. It never runs ahead on the word of a
    commit time beyond the producer's clock, so it may be below the last record's timestamp; a
    caller that has promised more keeps to what it promised (`Decoder.advance_head`).
    `ticks`: (start of the 10 ms cell, seq of the first record in it), cells that began here only.
    `mark`: the mark of a reshard that ends the batch; its `offset` is the seq of its record.
    `last_commit_us`: raw commit time of the last transaction, 0 before the first.
    """

    first_seq: int
    last_seq: int
    position: str
    head_us: int
    ticks: list[tuple[int, int]]
    last_commit_us: int
    binlog_file: str
    binlog_pos: int
    transactions: int
    mark: Mark | None = None
