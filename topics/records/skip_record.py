"""SKIP records: an operator's decision to pass transactions whose changes are not in the log."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from topics.errors import CorruptRecord
from topics.records.schema_ids import SchemaIds
from topics.records.statement_record import StatementEncoder
from topics.records.table_shape import skip_schema
from topics.records.vevent import EventType, TokenText, VEvent

# As of every record that belongs to no table: two empty Avro strings.
SKIP_KEY: Final = b"\0\0"

_ENCODER: Final = StatementEncoder(EventType.SKIP, skip_schema())
SKIP_SCHEMA_TEXT: Final = _ENCODER.schema_text


class SkipKind(StrEnum):
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
    return _ENCODER.encode(skip.to_json(), seq=seq, token=token, schema_ids=schema_ids, gtid=gtid)
