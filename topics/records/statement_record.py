"""Records that a command writes instead of a producer: each a transaction of its own."""

from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_writer

from topics.records.schema_ids import SchemaIds
from topics.records.table_shape import plain_schema, schema_text
from topics.records.vevent import EventType, TokenText
from topics.records.wire import wire_header


class StatementEncoder:
    """Encodes records of one type whose body is a statement, as DDL records have it."""

    def __init__(self, kind: EventType, schema: dict[str, Any], database: str = "") -> None:
        """`database`: of all its records."""
        self.schema_text = schema_text(schema)
        self._kind = kind
        self._avro = parse_schema(plain_schema(schema))
        self._database = database

    def encode(
        self, statement: str, *, seq: int, token: TokenText, schema_ids: SchemaIds, gtid: str = ""
    ) -> bytes:
        """Return the value of a record at the time of its token, which ends a transaction.

        `gtid`: "" if no server has executed it.
        """
        stream = BytesIO()
        stream.write(wire_header(schema_ids.register(self.schema_text)))
        schemaless_writer(
            stream,
            self._avro,
            {
                "type": self._kind.value,
                "seq": seq,
                "token": {
                    "timestamp_us": token.timestamp_us,
                    "shard": token.shard,
                    "position": token.position,
                    "origin": None,
                },
                "commit_us": token.timestamp_us,
                "gtid": gtid,
                "row_index": 0,
                "last": True,
                "database": self._database,
                "table": "",
                "op": "NONE",
                "keyspace_id_before": None,
                "keyspace_id_after": None,
                "columns_before": b"",
                "columns_after": b"",
                "off_calendar": [],
                "statement": statement,
            },
        )
        return stream.getvalue()
