"""JOURNAL records written by a command instead of a producer: a mark of a reshard."""

from typing import Final

from topics.progress.record import Mark
from topics.records.schema_ids import SchemaIds
from topics.records.statement_record import StatementEncoder
from topics.records.table_shape import ddl_schema
from topics.records.vevent import EventType, TokenText

_DATABASE: Final = "_shardstream"
# Database and table as Avro strings, as a producer writes them.
JOURNAL_KEY: Final = bytes([2 * len(_DATABASE)]) + _DATABASE.encode("ascii") + b"\0"

_ENCODER: Final = StatementEncoder(EventType.JOURNAL, ddl_schema(), _DATABASE)
JOURNAL_SCHEMA_TEXT: Final = _ENCODER.schema_text


def encode_journal(mark: Mark, *, seq: int, token: TokenText, schema_ids: SchemaIds) -> bytes:
    """Return the value of a mark's record: a transaction of its own, at the time of its token."""
    return _ENCODER.encode(mark.journal_text(), seq=seq, token=token, schema_ids=schema_ids)
