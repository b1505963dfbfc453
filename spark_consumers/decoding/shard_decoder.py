"""Decodes records of a shard log into Arrow record batches of the requested columns."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from event_token import KeyRange
from spark_consumers.decoding.output_columns import OutputColumns
from spark_consumers.decoding.record_batches import BatchDecoder
from spark_consumers.errors import HiddenValue
from spark_consumers.row_columns.hop_filter import HopFilter
from spark_consumers.row_columns.key_range import KeyRangeFilter
from topics.errors import CorruptRecord
from topics.reading.seen_before import SeenBefore


class ShardDecoder:
    """Decodes the records of one shard log, in order, into batches of the requested columns.

    It cannot be used after an error, because its columns may hold half a row.
    """

    def __init__(
        self,
        shard: str,
        output: OutputColumns,
        text_of: Callable[[int], str],
        key_range: KeyRange | None = None,
    ) -> None:
        """`text_of` returns the schema text of an id; rows outside `key_range` are left out."""
        self.shard = shard
        filtered = None if key_range is None else KeyRangeFilter(key_range.contains)
        self._decoder = BatchDecoder(output, text_of, shard=shard, key_range=filtered)
        self._loop = self._decoder.loop

    def begin(self, first_seq: int, late_before_us: int, seen: SeenBefore | None = None) -> None:
        """Expect `first_seq` next; records older than `late_before_us` are late.

        `seen`: what the stream had read before it hopped here without marks; those are dropped.
        """
        self._loop.seq = first_seq - 1
        self._loop.late_before_us = late_before_us
        self._loop.hop_filter = None if seen is None else HopFilter(seen.hop_time_us, seen.is_seen)

    @property
    def last_seq(self) -> int:
        """The seq of the last record decoded."""
        return int(self._loop.seq)

    def decode(self, records: Sequence[bytes], offsets: Sequence[int]) -> pa.RecordBatch:
        """Return the rows of the records, without other tables, other ranges and rows seen before.

        CorruptRecord: a record cannot be read. LogGap, LogRepeat: its `seq` is not the next one.
        RowImageMissing: a row lacks what is needed to tell whether it lies in the key range.
        HiddenValue: NULL would stand for an absent column or an invalid date, and nothing tells.
        """
        try:
            return self._decoder.decode(records, offsets)
        except HiddenValue as error:
            raise HiddenValue(f"shard {self.shard}, offset {self._loop.offset}: {error}") from error
        except (IndexError, ValueError, OverflowError) as error:
            raise CorruptRecord(
                f"shard {self.shard}, offset {self._loop.offset}: the record cannot be read: "
                f"{error}"
            ) from error
