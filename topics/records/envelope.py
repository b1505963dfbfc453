"""The reader of the envelope, the fields that every record of a shard log begins with.

Fields of version 1 are read in the order of `envelope_table.ENVELOPE`, which a test compares, and
fields of later versions as that table says. Typed for mypyc, and correct uncompiled too.
"""

from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from topics.errors import CorruptRecord, UnknownEnvelope
from topics.records.cursor import Cursor
from topics.records.envelope_table import EVENT_TYPES, OPS, EnvelopeField, added_fields
from topics.records.table_shape import WIRE_HEADER_BYTES, place, schema_id_of
from topics.records.vevent import TokenText

# The offset of a field that is null.
NULL: Final = -1

# Which image an invalid date belongs to.
_BEFORE: Final = 0
_AFTER: Final = 1

# Fields of later versions follow those of version 1, so code may read any version.
VERSION_ONE: Final = 1

# (index of the event type, seq, timestamp_us, whether it is the last of its transaction)
Envelope = tuple[int, int, int, bool]


class EnvelopeReader:
    """Reads the envelopes of successive records into its attributes.

    There are three steps, of which the later ones may be omitted: `open` (type and seq),
    `take_token`, `take_rest`. Afterwards `cursor` is at the body of the record. Strings and bytes
    are not copied: attributes `*_at` are their offsets in the record, for `bytes_at`.

    Invalid bytes raise IndexError or ValueError. Not thread-safe.
    """

    def __init__(self) -> None:
        """Begin without a record."""
        self.cursor: Cursor = Cursor()
        self.schema_id: i64 = 0
        self.type: i64 = 0
        self.seq: i64 = 0
        # Records of one transaction share a token; this number changes with the token.
        self.token_number: i64 = 0
        self.timestamp_us: i64 = 0
        self.shard: bytes = b""
        self.has_origin: bool = False
        self.commit_us: i64 = 0
        self.gtid_at: i64 = 0
        self.row_index: i64 = 0
        self.last: bool = False
        self.database_at: i64 = 0
        self.table_at: i64 = 0
        self.op_at: i64 = 0
        self.op: i64 = 0
        self.keyspace_id_before_at: i64 = NULL
        self.keyspace_id_after_at: i64 = NULL
        self.columns_before: bytes = b""
        self.columns_after: bytes = b""
        # Texts of invalid dates, by the index of the column.
        self.dates_before: dict[int, str] = {}
        self.dates_after: dict[int, str] = {}
        self._has_dates: bool = False
        # Values of the fields that later versions have added, by name.
        self.added: dict[str, object] = {}
        self._added_fields: list[EnvelopeField] = list(added_fields())
        self._has_added: bool = len(self._added_fields) > 0
        self._type_count: i64 = len(EVENT_TYPES)
        self._op_count: i64 = len(OPS)
        self._token: bytes = b""
        self._token_cursor: Cursor = Cursor()
        self._position_at: i64 = 0  # an offset in the token, like the next one
        self._origin_at: i64 = 0
        self._token_text: TokenText | None = None
        # Texts that successive records mostly share, and the bytes that they are made of.
        self.database: str = ""
        self.table: str = ""
        self._names: bytes = b""
        self._gtid: str = ""
        self._gtid_bytes: bytes = b""

    def read(self, record: bytes, version: i64) -> None:
        """Read the whole envelope of a record; `version`: that of its schema's envelope."""
        self.open(record)
        self.take_token()
        self.take_rest(version)

    def open(self, record: bytes) -> None:
        """Read schema id, type and seq of a record."""
        if len(record) < WIRE_HEADER_BYTES or record[0] != 0:
            raise ValueError("it does not begin with a zero and a schema id")
        self.schema_id = i64(read_i32_be(record, 1))
        cursor = self.cursor
        cursor.open(record, WIRE_HEADER_BYTES)
        self.type = cursor.take_long()
        self.seq = cursor.take_long()

    def take_token(self) -> None:
        """Read the event token."""
        cursor = self.cursor
        at = cursor.at
        timestamp_us = cursor.take_long()
        shard_at = cursor.at
        cursor.skip_bytes()
        position_at = cursor.at
        cursor.skip_bytes()
        has_origin = cursor.take_present()
        origin_at = cursor.at
        if has_origin:
            cursor.take_long()
            cursor.skip_bytes()
            cursor.skip_bytes()
        token = cursor.record[at : cursor.at]
        if token == self._token:
            return
        self.token_number += 1
        self.timestamp_us = timestamp_us
        self.shard = self.bytes_at(shard_at)
        self.has_origin = has_origin
        self._position_at = position_at - at
        self._origin_at = origin_at - at
        self._token = token
        self._token_text = None

    def take_rest(self, version: i64) -> None:
        """Read the fields after the token; `version`: that of the schema's envelope.

        With VERSION_ONE the envelope of any version is read as far as the first one had it.
        """
        cursor = self.cursor
        self.commit_us = cursor.take_long()
        self.gtid_at = cursor.at
        cursor.skip_bytes()
        self.row_index = cursor.take_long()
        self.last = cursor.take_flag()
        self.database_at = cursor.at
        cursor.skip_bytes()
        self.table_at = cursor.at
        cursor.skip_bytes()
        self.op_at = cursor.at
        self.op = cursor.take_long()
        kind = self.type
        op = self.op
        if kind < 0 or kind >= self._type_count or op < 0 or op >= self._op_count:
            raise ValueError(f"there is no type {kind}, or no op {op}")
        self.keyspace_id_before_at = self._skip_nullable()
        self.keyspace_id_after_at = self._skip_nullable()
        self.columns_before = cursor.take_bytes()
        self.columns_after = cursor.take_bytes()
        count = cursor.take_block_count()
        if count != 0 or self._has_dates:
            self._take_dates(count)
        if self._has_added:
            self._take_added(version)

    def gtid(self) -> str:
        """Return the GTID of the transaction."""
        gtid = self.bytes_at(self.gtid_at)
        if gtid != self._gtid_bytes:
            self._gtid = gtid.decode("utf-8")
            self._gtid_bytes = gtid
        return self._gtid

    def take_names(self) -> None:
        """Set `database` and `table`."""
        names = self.cursor.record[self.database_at : self.op_at]
        if names != self._names:
            self.database = self.text_at(self.database_at)
            self.table = self.text_at(self.table_at)
            self._names = names

    def bytes_at(self, at: i64) -> bytes:
        """Return the string or bytes at byte `at` of the record."""
        cursor = self.cursor
        here = cursor.at
        cursor.at = at
        found = cursor.take_bytes()
        cursor.at = here
        return found

    def text_at(self, at: i64) -> str:
        """Return the string at byte `at`; UnicodeDecodeError (a ValueError) unless UTF-8."""
        return self.bytes_at(at).decode("utf-8")

    def keyspace_id_at(self, at: i64) -> bytes | None:
        """Return the keyspace id at byte `at`, None for NULL."""
        return None if at == NULL else self.bytes_at(at)

    def position(self) -> bytes:
        """Return the token's GTID set."""
        cursor = self._token_cursor
        cursor.open(self._token, self._position_at)
        return cursor.take_bytes()

    def origin(self) -> tuple[int, bytes, bytes]:
        """Return (timestamp_us, shard, position) of the origin; only if `has_origin`."""
        cursor = self._token_cursor
        cursor.open(self._token, self._origin_at)
        timestamp_us = cursor.take_long()
        shard = cursor.take_bytes()
        return int(timestamp_us), shard, cursor.take_bytes()

    def token_text(self) -> TokenText:
        """Return the token; records that share it get the same object."""
        if self._token_text is None:
            origin: TokenText | None = None
            if self.has_origin:
                origin_us, shard, position = self.origin()
                origin = TokenText(origin_us, shard.decode("utf-8"), position.decode("utf-8"))
            self._token_text = TokenText(
                int(self.timestamp_us),
                self.shard.decode("utf-8"),
                self.position().decode("utf-8"),
                origin,
            )
        return self._token_text

    def _skip_nullable(self) -> i64:
        """Skip nullable bytes and return their offset, or NULL."""
        cursor = self.cursor
        if not cursor.take_present():
            return NULL
        at = cursor.at
        cursor.skip_bytes()
        return at

    def _take_added(self, version: i64) -> None:
        """Read the added fields that a version has; the others have their defaults."""
        self.added = {
            field.name: self._take_value(field.avro) if field.since <= version else field.default
            for field in self._added_fields
        }

    def _take_value(self, avro: object) -> object:
        if isinstance(avro, list):
            return self._take_value(avro[1]) if self.cursor.take_present() else None
        if avro == "long":
            return int(self.cursor.take_long())
        if avro == "boolean":
            return self.cursor.take_flag()
        if avro == "string":
            return self.cursor.take_text()
        if avro == "bytes":
            return self.cursor.take_bytes()
        raise TypeError(f"no field that a version adds to the envelope can be of type {avro}")

    def _take_dates(self, count: i64) -> None:
        """Read the blocks of invalid dates; `count` is that of the first one."""
        cursor = self.cursor
        self._has_dates = count != 0
        before: dict[int, str] = {}
        after: dict[int, str] = {}
        while count > 0:
            image = cursor.take_long()
            if image != _BEFORE and image != _AFTER:  # noqa: PLR1714 - a set would box the number
                raise ValueError(f"an invalid date belongs to image {image}, which does not exist")
            column = cursor.take_long()
            (before if image == _BEFORE else after)[int(column)] = cursor.take_text()
            count -= 1
            if count == 0:
                count = cursor.take_block_count()
        self.dates_before = before
        self.dates_after = after


def read_seq(value: bytes, topic: str = "a shard log", offset: int | None = None) -> int:
    """Return the seq of a shard log record, without reading further.

    CorruptRecord, naming topic and offset, when there is none.
    """
    return int(_opened(value, topic, offset).seq)


def read_envelope(value: bytes, topic: str = "a shard log", offset: int | None = None) -> Envelope:
    """Return (type index, seq, timestamp_us, last) of a shard log record.

    Raises what `whole_envelope` raises.
    """
    envelope = whole_envelope(value, topic, offset)
    return int(envelope.type), int(envelope.seq), int(envelope.timestamp_us), envelope.last


def whole_envelope(value: bytes, topic: str, offset: int | None) -> EnvelopeReader:
    """Return a reader that has read the envelope of a shard log record.

    CorruptRecord, naming topic and offset, when the envelope is truncated or broken;
    UnknownEnvelope when its type is one of a newer release.
    """
    envelope = _opened(value, topic, offset)
    if envelope.type >= len(EVENT_TYPES):
        raise UnknownEnvelope(
            f"{place(topic, offset)}: a record of type {envelope.type}, which this release does "
            "not know: upgrade this reader to the release that wrote it"
        )
    try:
        envelope.take_token()
        envelope.take_rest(VERSION_ONE)
    except (IndexError, ValueError) as error:
        raise _broken(topic, offset) from error
    return envelope


def _opened(value: bytes, topic: str, offset: int | None) -> EnvelopeReader:
    schema_id_of(value, topic, offset)
    envelope = EnvelopeReader()
    try:
        envelope.open(value)
    except (IndexError, ValueError) as error:
        raise _broken(topic, offset) from error
    return envelope


def _broken(topic: str, offset: int | None) -> CorruptRecord:
    return CorruptRecord(f"{place(topic, offset)}: the envelope is truncated or broken")
