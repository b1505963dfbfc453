"""Filters row images by key range, before they are decoded. Typed for mypyc.

The same rule as `topics.reading.key_filter`, which filters decoded events: an update that crosses
the border becomes a DELETE or an INSERT, and an image without its keyspace id stops the reader.
"""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from topics.errors import RowImageMissing
from topics.records.envelope import EnvelopeReader

# What is seen of a row, as bits.
BEFORE: Final = 1
AFTER: Final = 2


class KeyRangeFilter:
    """Looks at a record's keyspace ids."""

    def __init__(self, contains: Callable[[bytes], bool]) -> None:
        """`contains` tells whether a keyspace id lies in the range."""
        self.contains: Callable[[bytes], bool] = contains

    def seen(self, envelope: EnvelopeReader, whole: bytes) -> i64:
        """Return BEFORE, AFTER, both or 0 for an envelope that has been read to its end.

        `whole` is the bit map of an image with all columns. RowImageMissing, naming the table,
        when an image lacks its keyspace id or columns.
        """
        id_before = envelope.keyspace_id_at(envelope.keyspace_id_before_at)
        id_after = envelope.keyspace_id_at(envelope.keyspace_id_after_at)
        problem = _problem("before", id_before, envelope.columns_before, whole) or _problem(
            "after", id_after, envelope.columns_after, whole
        )
        if problem:
            database = envelope.text_at(envelope.database_at)
            raise RowImageMissing(f"{database}.{envelope.text_at(envelope.table_at)}: {problem}")
        found: i64 = 0
        if id_before is not None and self.contains(id_before):
            found |= BEFORE
        if id_after is not None and self.contains(id_after):
            found |= AFTER
        return found


def _problem(image: str, keyspace_id: bytes | None, bits: bytes, whole: bytes) -> str:
    """Why it is unknown whether the image is inside the range; "" if known, or without image."""
    if not bits:
        return ""
    if bits != whole:
        return (
            f"the {image} image of a row lacks columns; a range that is not made of whole shards "
            "needs full row images: set binlog_row_image=FULL, or read whole shards"
        )
    if keyspace_id is None:
        return (
            f"the {image} image of a row has no keyspace id: the table had no vindex when it was "
            "logged. Give it one in the settings of the keyspace and start after this, or read "
            "whole shards"
        )
    return ""
