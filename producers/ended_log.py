"""Whether a shard log has ended by a reshard, read when a producer takes it over."""

import json
from typing import Any, Final

from pymysql.constants import ER
from pymysql.err import MySQLError

from producers.flavor import rows
from topics.codec import VEventCodec, read_envelope
from topics.kafka_client import ClientConfig
from topics.names import ShardTopics
from topics.schema_ids import SchemaIds
from topics.tail import TAIL_TIMEOUT_S, PartitionReader
from topics.vevent import TYPES_BY_INDEX, EventType

# Records looked at in one go. Behind END stand DDL and other marks alone: mostly one look.
_WINDOW: Final = 1024
# The account may lack SELECT there, and where `_shardstream` is gone nothing is cancelled.
_NO_JOURNAL: Final = frozenset(
    {
        ER.DBACCESS_DENIED_ERROR,
        ER.TABLEACCESS_DENIED_ERROR,
        ER.BAD_DB_ERROR,
        ER.NO_SUCH_TABLE,
    }
)


def ended_by(
    config: ClientConfig, topics: ShardTopics, schema_ids: SchemaIds, connection: Any
) -> tuple[str, ...]:
    """The reshards whose END the log holds and that neither log nor server call cancelled.

    A cancel that the log does not hold yet counts: rows in front of it are true then, too.
    Raises Retry when Kafka does not answer, and the connection's errors.
    """
    ended = _ended_in_log(config, topics, schema_ids)
    if not ended:
        return ()
    cancelled = _cancelled_on_server(connection)
    return tuple(reshard_id for reshard_id in ended if reshard_id not in cancelled)


def _ended_in_log(config: ClientConfig, topics: ShardTopics, schema_ids: SchemaIds) -> list[str]:
    """Look back to the last row: behind END without CANCELLED none can stand."""
    codec = VEventCodec(schema_ids)
    newest: dict[str, str] = {}
    with PartitionReader(config, topics.log, 0, TAIL_TIMEOUT_S) as reader:
        start, upper = reader.bounds()
        has_row = False
        while upper > start and not has_row:
            lower = max(start, upper - _WINDOW)
            for record in reversed(list(reader.records(lower, upper))):
                where = f"{topics.log}, offset {record.offset}"
                kind = TYPES_BY_INDEX[read_envelope(record.value or b"", where)[0]]
                has_row = kind is EventType.ROW
                if has_row:
                    break
                if kind is EventType.JOURNAL:
                    event = codec.decode(record.value, topics.shard, record.offset)
                    journal = json.loads(event.statement or "")
                    newest.setdefault(journal["reshard_id"], journal["kind"])
            upper = lower
    return sorted(reshard_id for reshard_id, kind in newest.items() if kind == "END")


def _cancelled_on_server(connection: Any) -> set[str]:
    statement = "SELECT reshard_id FROM _shardstream.journal WHERE kind = 'CANCELLED'"
    try:
        return {str(reshard_id) for (reshard_id,) in rows(connection, statement)}
    except MySQLError as error:
        if error.args and error.args[0] in _NO_JOURNAL:
            return set()
        raise
