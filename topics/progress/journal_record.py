"""JOURNAL records written by a command instead of a producer: a mark of a reshard."""

import json
from io import BytesIO
from typing import Final

from fastavro import parse_schema, schemaless_writer

from topics.progress.record import Mark, MarkKind
from topics.records.schema_ids import SchemaIds
from topics.records.table_shape import ddl_schema, plain_schema, schema_text
from topics.records.vevent import TokenText
from topics.records.wire import wire_header

JOURNAL_SCHEMA_TEXT: Final = schema_text(ddl_schema())
_DATABASE: Final = "_shardstream"
# Database and table as Avro strings, as a producer writes them.
JOURNAL_KEY: Final = bytes([2 * len(_DATABASE)]) + _DATABASE.encode("ascii") + b"\0"

_AVRO: Final = parse_schema(plain_schema(ddl_schema()))


def encode_journal(mark: Mark, *, seq: int, token: TokenText, schema_ids: SchemaIds) -> bytes:
    """Return the value of a mark's record: a transaction of its own, at the time of its token.

    It has no GTID, for no server has executed it.
    """
    stream = BytesIO()
    stream.write(wire_header(schema_ids.register(JOURNAL_SCHEMA_TEXT)))
    schemaless_writer(
        stream,
        _AVRO,
        {
            "type": "JOURNAL",
            "seq": seq,
            "token": {
                "timestamp_us": token.timestamp_us,
                "shard": token.shard,
                "position": token.position,
                "origin": None,
            },
            "commit_us": token.timestamp_us,
            "gtid": "",
            "row_index": 0,
            "last": True,
            "database": _DATABASE,
            "table": "",
            "op": "NONE",
            "keyspace_id_before": None,
            "keyspace_id_after": None,
            "columns_before": b"",
            "columns_after": b"",
            "off_calendar": [],
            "statement": journal_text(mark),
        },
    )
    return stream.getvalue()


def journal_text(mark: Mark) -> str:
    """Return the journal row of a mark as JSON, which is the statement of its record."""
    return json.dumps(
        {
            "reshard_id": mark.reshard_id,
            "kind": "CANCELLED" if mark.kind is MarkKind.CANCEL else mark.kind.value,
            "sources": list(mark.sources),
            "targets": list(mark.targets),
            "hop_time_us": mark.hop_time_us,
        }
    )
