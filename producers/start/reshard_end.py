"""What the END of a reshard means to a producer: which logs have one, and which rows it stops."""

import functools
from typing import Any, Final

from pymysql.constants import ER
from pymysql.err import MySQLError

from databases.connection import error_code
from databases.internal_tables import JOURNAL
from databases.sql import rows
from event_token.errors import UsageError
from topics.errors import NoBrokerAnswers
from topics.kafka.client import ClientConfig
from topics.keyspace.topology import read_topology
from topics.names import ShardTopics
from topics.records.schema_ids import SchemaIds
from topics.stream.log_marks import marks_at_end

# The account may lack SELECT on it; and without `_shardstream` nothing was cancelled.
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
    """The reshards whose END the log holds and that are cancelled neither there nor on the server.

    A cancellation that the log does not hold yet counts: rows before it are valid, too.
    Raises Retry when Kafka does not answer, and the connection's errors.
    """

    @functools.cache
    def asked_once(database: str) -> bool:
        return is_sharded(config, topics.keyspace, database)

    marks = marks_at_end(config, topics, schema_ids, asked_once)
    ended = sorted(mark.reshard_id for mark in marks.values() if mark.kind == "END")
    if not ended:
        return ()
    cancelled = _cancelled_on_server(connection)
    return tuple(reshard_id for reshard_id in ended if reshard_id not in cancelled)


def is_sharded(config: ClientConfig, keyspace: str, database: str) -> bool:
    """Whether a table of the database has a vindex in the topology by now.

    Without a topology every database counts. Raises Retry or NoBrokerAnswers.
    """
    try:
        topology = read_topology(config, keyspace)
    except NoBrokerAnswers:
        raise
    except UsageError:  # the topic does not exist
        topology = None
    if topology is None:
        return True
    return any(vindex.database == database for vindex in topology.vindexes)


def _cancelled_on_server(connection: Any) -> set[str]:
    statement = f"SELECT reshard_id FROM {JOURNAL} WHERE kind = 'CANCELLED'"  # noqa: S608 - our own name
    try:
        return {str(reshard_id) for (reshard_id,) in rows(connection, statement)}
    except MySQLError as error:
        if error_code(error) in _NO_JOURNAL:
            return set()
        raise
