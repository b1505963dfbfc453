"""Records that a command writes instead of a producer: marks of reshards, and skips."""

from io import BytesIO
from typing import Final

from fastavro import parse_schema, schemaless_writer

from topics.records.envelope_table import envelope_defaults
from topics.records.table_shape import (
    SchemaIds,
    plain_schema,
    schema_text,
    statement_schema,
    wire_header,
)
from topics.records.vevent import EventType, TokenText

STATEMENT_SCHEMA_TEXT: Final = schema_text(statement_schema())
_AVRO: Final = parse_schema(plain_schema(statement_schema()))

_DATABASE: Final = "_shardstream"
# Database and table as Avro strings, as a producer writes them.
JOURNAL_KEY: Final = bytes([2 * len(_DATABASE)]) + _DATABASE.encode("ascii") + b"\0"


def encode_journal(mark: str, *, seq: int, token: TokenText, schema_ids: SchemaIds) -> bytes:
    """Return the value of a mark's record, given its JSON text, at the time of its token."""
    return encode_statement(
        EventType.JOURNAL, mark, database=_DATABASE, seq=seq, token=token, schema_ids=schema_ids
    )


def encode_statement(
    kind: EventType,
    statement: str,
    *,
    seq: int,
    token: TokenText,
    schema_ids: SchemaIds,
    database: str = "",
    gtid: str = "",
) -> bytes:
    """Return the value of a record at the time of its token, which ends a transaction.

    `gtid`: "" if no server has executed it.
    """
    stream = BytesIO()
    stream.write(wire_header(schema_ids.register(STATEMENT_SCHEMA_TEXT)))
    schemaless_writer(
        stream,
        _AVRO,
        {
            **envelope_defaults(),
            "type": kind.value,
            "seq": seq,
            "token": {
                "timestamp_us": token.timestamp_us,
                "shard": token.shard,
                "position": token.position,
                "origin": None,
            },
            "commit_us": token.timestamp_us,
            "gtid": gtid,
            "last": True,
            "database": database,
            "statement": statement,
        },
    )
    return stream.getvalue()
