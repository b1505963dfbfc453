"""Filters decoded events by key range: rows by keyspace id; everything else always passes.

Spark applies the same rule to bytes, in `spark_consumers.row_columns.key_range`.
"""

from dataclasses import replace

from event_token import KeyRange
from topics.errors import RowImageMissing
from topics.records.vevent import EventType, Op, Row, VEvent


def in_key_range(event: VEvent, key_range: KeyRange) -> VEvent | None:
    """Return the part of an event that lies in `key_range`, None if none does.

    An update that crosses the border becomes a DELETE (it leaves) or an INSERT (it enters). DDL,
    JOURNAL and the records of a copy always pass. RowImageMissing (Halt) when a row has no keyspace
    id or lacks columns.
    """
    if event.type is not EventType.ROW:
        return event
    before = _sees(event, event.before, event.keyspace_id_before, key_range, "before")
    after = _sees(event, event.after, event.keyspace_id_after, key_range, "after")
    if before is False and after:
        return replace(event, op=Op.INSERT, before=None, keyspace_id_before=None)
    if before and after is False:
        return replace(event, op=Op.DELETE, after=None, keyspace_id_after=None)
    return event if before or after else None


def _sees(
    event: VEvent, row: Row | None, keyspace_id: bytes | None, key_range: KeyRange, image: str
) -> bool | None:
    """Tell whether the range contains a row image; None if there is no such image."""
    if row is None:
        return None
    where = (
        f"shard {event.shard}, {event.gtid}, offset {event.offset}: the {image} image of a row "
        f"of {event.database}.{event.table}"
    )
    if event.shape is not None and len(row) != len(event.shape.columns):
        raise RowImageMissing(
            f"{where} has {len(row)} of {len(event.shape.columns)} columns: the key range "
            f"{key_range} needs full row images. Set binlog_row_image=FULL, or read whole shards",
        )
    if keyspace_id is None:
        raise RowImageMissing(
            f"{where} has no keyspace id: the table had no vindex when it was logged, so the key "
            f"range {key_range} cannot be applied. Give the table a vindex in the settings of the "
            f"keyspace and start after this, or read whole shards",
        )
    return key_range.contains(keyspace_id)
