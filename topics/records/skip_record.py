"""SKIP records: an operator's decision to pass transactions whose changes are not in the log."""

import json
from dataclasses import dataclass
from enum import Enum
from io import BytesIO
from typing import Final, Self

from fastavro import parse_schema, schemaless_writer

from topics.errors import CorruptRecord
from topics.records.schema_ids import SchemaIds
from topics.records.table_shape import plain_schema, schema_text, skip_schema
from topics.records.vevent import TokenText, VEvent
from topics.records.wire import wire_header

SKIP_SCHEMA_TEXT: Final = schema_text(skip_schema())
# As of every record that belongs to no table: two empty Avro strings.
SKIP_KEY: Final = b"\0\0"

_AVRO: Final = parse_schema(plain_schema(skip_schema()))


class SkipKind(str, Enum):
    """What was skipped."""

    TRANSACTION = "transaction"  # it stopped the shard for good, and its changes are not logged
    LOST = "lost"  # the log holds them, and a failover lost them on the servers


@dataclass(frozen=True, slots=True)
class Skip:
    """What a SKIP record says.

    `gtids`: of all skipped transactions, separated by commas; of a loss on MariaDB those that left
    records in the log. `reason`: the operator's.
    """

    kind: SkipKind
    gtids: str
    reason: str

    def to_json(self) -> str:
        """Return the record's `statement`."""
        fields = {"kind": self.kind.value, "gtids": self.gtids, "reason": self.reason}
        return json.dumps(fields, ensure_ascii=False)

    @classmethod
    def of(cls, event: VEvent) -> Self:
        """Return what a SKIP event says; CorruptRecord if it says nothing."""
        try:
            fields = json.loads(event.statement or "")
            return cls(SkipKind(fields["kind"]), fields["gtids"], fields["reason"])
        except (KeyError, TypeError, ValueError) as error:
            where = f"log of shard {event.shard}, offset {event.offset}"
            raise CorruptRecord(f"{where}: a SKIP record is broken: {error}") from error


def encode_skip(
    skip: Skip, *, seq: int, token: TokenText, gtid: str, schema_ids: SchemaIds
) -> bytes:
    """Return the value of a SKIP record: a transaction of its own, at the time of its token.

    `gtid`: as the operator named what is skipped.
    """
    stream = BytesIO()
    stream.write(wire_header(schema_ids.register(SKIP_SCHEMA_TEXT)))
    schemaless_writer(
        stream,
        _AVRO,
        {
            "type": "SKIP",
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
            "database": "",
            "table": "",
            "op": "NONE",
            "keyspace_id_before": None,
            "keyspace_id_after": None,
            "columns_before": b"",
            "columns_after": b"",
            "off_calendar": [],
            "statement": skip.to_json(),
        },
    )
    return stream.getvalue()
