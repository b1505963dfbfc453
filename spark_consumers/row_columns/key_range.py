"""Which images of a row a key range sees. Typed for mypyc.

The same rule as `topics.reading.key_filter`: an update that crosses the border is a DELETE or an
INSERT here, and what cannot be told stops the reader.
"""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from topics.records.cursor import Cursor

# What is seen of a row, as bits.
BEFORE: Final = 1
AFTER: Final = 2


class CannotTell(ValueError):  # noqa: N818 - always caught, with the place added, at the border
    """Raised where a row image has no keyspace id, or not all columns."""


class KeyRangeFilter:
    """Looks ahead in a record's envelope."""

    def __init__(self, contains: Callable[[bytes], bool]) -> None:
        """`contains` tells whether a keyspace id lies in the range."""
        self.contains: Callable[[bytes], bool] = contains

    def seen(self, cursor: Cursor, whole: bytes) -> i64:
        """Return BEFORE, AFTER, both or 0; the cursor stands at the token, and stays there.

        `whole` is the bit map of an image with all columns. CannotTell: see there.
        """
        begin = cursor.at
        cursor.take_long()  # timestamp
        cursor.skip_bytes()  # shard
        cursor.skip_bytes()  # position
        if cursor.take_present():  # origin
            cursor.take_long()
            cursor.skip_bytes()
            cursor.skip_bytes()
        cursor.take_long()  # commit time
        cursor.skip_bytes()  # GTID
        cursor.take_long()  # row index
        cursor.take_byte()  # last
        names_at = cursor.at
        cursor.skip_bytes()  # database
        cursor.skip_bytes()  # table
        cursor.take_long()  # op
        id_before = cursor.take_bytes() if cursor.take_present() else None
        id_after = cursor.take_bytes() if cursor.take_present() else None
        bits_before = cursor.take_bytes()
        bits_after = cursor.take_bytes()
        problem = _problem("before", id_before, bits_before, whole) or _problem(
            "after", id_after, bits_after, whole
        )
        if problem:
            cursor.at = names_at
            database = cursor.take_bytes().decode("utf-8")
            raise CannotTell(f"{database}.{cursor.take_bytes().decode('utf-8')}: {problem}")
        found: i64 = 0
        if id_before is not None and self.contains(id_before):
            found |= BEFORE
        if id_after is not None and self.contains(id_after):
            found |= AFTER
        cursor.at = begin
        return found


def _problem(image: str, keyspace_id: bytes | None, bits: bytes, whole: bytes) -> str:
    """Why the image cannot be told to be inside or outside; "" where it can, or is not there."""
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
