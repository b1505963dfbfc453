"""Events out of the bytes of their records, by a reader for each schema."""

from typing import Final

from mypy_extensions import i64

from topics.records.cursor import Cursor
from topics.records.table_shape import TableShape
from topics.records.values import RowReader
from topics.records.vevent import (
    IMAGES,
    OPS_BY_INDEX,
    TYPES_BY_INDEX,
    EventType,
    Op,
    Row,
    TokenText,
    VEvent,
)
from topics.records.wire import WIRE_HEADER_BYTES

_TYPES: Final[list[EventType]] = list(TYPES_BY_INDEX)
_OPS: Final[list[Op]] = list(OPS_BY_INDEX)
# Which row images an op has, by its index.
_HAS_BEFORE: Final[list[bool]] = [IMAGES[op][0] for op in OPS_BY_INDEX]
_HAS_AFTER: Final[list[bool]] = [IMAGES[op][1] for op in OPS_BY_INDEX]

_BEFORE: Final = 0
_AFTER: Final = 1


class TokenReader:
    """Takes event tokens; records of one transaction follow each other and share theirs."""

    def __init__(self) -> None:
        """Begin without a token."""
        self._bytes: bytes = b""
        self._token: TokenText | None = None

    def take(self, cursor: Cursor) -> TokenText:
        """Take a token."""
        at = cursor.at
        if self._token is not None and cursor.record.startswith(self._bytes, at):
            cursor.at = at + len(self._bytes)
            return self._token
        timestamp_us, shard, position = cursor.take_long(), cursor.take_text(), cursor.take_text()
        origin: TokenText | None = None
        if cursor.take_present():
            origin = TokenText(cursor.take_long(), cursor.take_text(), cursor.take_text())
        token = TokenText(timestamp_us, shard, position, origin)
        self._bytes = cursor.record[at : cursor.at]
        self._token = token
        return token


class EventReader:
    """Reads the records of one schema, that of a table version or, without a shape, of DDL.

    Not for two threads at once.
    """

    def __init__(self, shape: TableShape | None, tokens: TokenReader) -> None:
        """`tokens` may be shared with the readers of other schemas."""
        self._shape: TableShape | None = shape
        self._rows: RowReader | None = None if shape is None else RowReader(shape)
        self._tokens: TokenReader = tokens
        self._cursor: Cursor = Cursor()

    def read(self, record: bytes, shard: str, offset: int) -> VEvent:
        """Return the event in a record, wire header and all.

        IndexError, OverflowError or ValueError when its bytes do not follow the schema.
        """
        cursor = self._cursor
        cursor.open(record, WIRE_HEADER_BYTES)
        kind = cursor.take_long()
        seq = cursor.take_long()
        token = self._tokens.take(cursor)
        if token.shard != shard:
            raise ValueError(f"its token is of shard {token.shard!r}")
        commit_us = cursor.take_long()
        gtid = cursor.take_text()
        row_index = cursor.take_long()
        last = cursor.take_flag()
        database = cursor.take_text()
        table = cursor.take_text()
        op = cursor.take_long()
        if not (0 <= kind < len(_TYPES) and 0 <= op < len(_OPS)):
            raise ValueError(f"there is no type {kind}, or no op {op}")
        keyspace_id_before = self._nullable_bytes()
        keyspace_id_after = self._nullable_bytes()
        before, after = self._images(kind, op)
        statement = cursor.take_text() if self._rows is None else None
        if cursor.at != cursor.end:
            raise ValueError("bytes are left after the last field")
        cursor.close()
        return VEvent(
            _TYPES[kind],
            seq,
            token,
            commit_us,
            gtid,
            row_index,
            last,
            database,
            table,
            _OPS[op],
            keyspace_id_before,
            keyspace_id_after,
            before,
            after,
            statement,
            self._shape,
            shard,
            offset,
        )

    def _images(self, kind: i64, op: i64) -> tuple[Row | None, Row | None]:
        """Take what stands between the keyspace ids and the end of a row."""
        cursor = self._cursor
        columns_before = cursor.take_bytes()
        columns_after = cursor.take_bytes()
        texts_before, texts_after = self._off_calendar()
        before: Row | None = None
        after: Row | None = None
        rows = self._rows
        if rows is not None:
            if cursor.take_present():
                before = rows.take(cursor, columns_before, texts_before)
            if cursor.take_present():
                after = rows.take(cursor, columns_after, texts_after)
        if (
            (before is not None) != _HAS_BEFORE[op]
            or (after is not None) != _HAS_AFTER[op]
            or (_TYPES[kind] is EventType.ROW) != (_OPS[op] is not Op.NONE)
        ):
            raise ValueError(f"the row images do not fit {_TYPES[kind].value} {_OPS[op].value}")
        if (texts_before and before is None) or (texts_after and after is None):
            raise ValueError("a date off the calendar is of an image that is not there")
        return before, after

    def _nullable_bytes(self) -> bytes | None:
        return self._cursor.take_bytes() if self._cursor.take_present() else None

    def _off_calendar(self) -> tuple[dict[int, str], dict[int, str]]:
        """Take the texts of dates off the calendar: by column, of before and of after."""
        cursor = self._cursor
        before: dict[int, str] = {}
        after: dict[int, str] = {}
        count = cursor.take_block_count()
        while count > 0:
            image = cursor.take_long()
            if image != _BEFORE and image != _AFTER:  # noqa: PLR1714 - a set would box the number
                raise ValueError(f"a date off the calendar is of image {image}")
            column = cursor.take_long()
            (before if image == _BEFORE else after)[column] = cursor.take_text()
            count -= 1
            if count == 0:
                count = cursor.take_block_count()
        return before, after
