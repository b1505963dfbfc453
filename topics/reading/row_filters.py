"""What a reader leaves out of decoded events: rows of other key ranges, and rows read before a hop.

Rows are filtered by keyspace id; everything else always passes. Readers of columns apply the same
rules to bytes, in `topics.arrow.columns.envelope_columns`. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self, cast

from event_token import EventToken, KeyRange, Order, compare
from topics.errors import RowImageMissing
from topics.records.vevent import EventType, Op, Row, TokenText, VEvent


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
    return with_images(event, before=before, after=after)


def with_images(event: VEvent, *, before: bool | None, after: bool | None) -> VEvent | None:
    """Return the part of a change of a row whose images are seen, None if neither is.

    `before`, `after`: None for an image that the change does not have. An update of which one image
    is seen becomes a DELETE or an INSERT.
    """
    if before is False and after:
        return replace(event, op=Op.INSERT, before=None, keyspace_id_before=None)
    if before and after is False:
        return replace(event, op=Op.DELETE, after=None, keyspace_id_after=None)
    return event if before or after else None


def _sees(
    event: VEvent, row: Row | None, keyspace_id: bytes | None, key_range: KeyRange, image: str
) -> bool | None:
    """Return whether the range contains a row image; None if there is no such image."""
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


@dataclass(frozen=True, slots=True)
class ReadBeforeHop:
    """How far a reader had read the sources when it hopped to a target without marks.

    `is_exact`: it had read all changes of the sources before `frontier_us`, and none later.
    Otherwise `tokens` are the last ones read of each source. `frontier_us` None: unknown.
    """

    hop_time_us: int
    frontier_us: int | None = None
    is_exact: bool = False
    tokens: Mapping[str, EventToken | None] | None = None

    def filtered(self, event: VEvent) -> VEvent | None:
        """Return the event, marked if it may have been seen; None if it was."""
        was_read = self.was_read(event.timestamp_us, event.token_text.origin)
        if was_read is None:
            return replace(event, possible_duplicate=True)
        return None if was_read else event

    def was_read(self, timestamp_us: int, origin: TokenText | None) -> bool | None:
        """Return whether a change with this time and origin was seen; None if that is unknown.

        Without an origin a change from `hop_time_us` on is new. An origin proves that a change was
        seen, never that it was not: it is the newest of all source changes that were applied in
        one transaction of the target.
        """
        if origin is None:
            return False if timestamp_us >= self.hop_time_us else None
        if self.tokens is None or origin.shard not in self.tokens:
            return None
        if self.is_exact and self.frontier_us is not None:
            return True if origin.timestamp_us < self.frontier_us else None
        last = self.tokens[origin.shard]
        order = Order.UNKNOWN if last is None else compare(origin.token, last)
        return True if order in {Order.OLDER, Order.EQUAL} else None

    def to_json_dict(self) -> dict[str, object]:
        """Return plain JSON values, with tokens as opaque strings."""
        tokens = self.tokens
        return {
            "hop_time_us": self.hop_time_us,
            "frontier_us": self.frontier_us,
            "is_exact": self.is_exact,
            "tokens": None
            if tokens is None
            else {s: None if t is None else t.to_string() for s, t in tokens.items()},
        }

    @classmethod
    def from_json_dict(cls, document: Mapping[str, object]) -> Self:
        """Parse plain JSON values; KeyError, TypeError, ValueError or TokenError if invalid."""
        if document.keys() != {"hop_time_us", "frontier_us", "is_exact", "tokens"}:
            raise ValueError(f"it says {', '.join(sorted(document))} of a hop")
        frontier_us = cast("int | None", document["frontier_us"])
        tokens = cast("Mapping[str, str | None] | None", document["tokens"])
        return cls(
            int(cast("int", document["hop_time_us"])),
            None if frontier_us is None else int(frontier_us),
            document["is_exact"] is True,
            tokens
            if tokens is None
            else {s: t if t is None else EventToken.from_string(t) for s, t in tokens.items()},
        )
