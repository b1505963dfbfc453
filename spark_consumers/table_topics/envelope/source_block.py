"""The `source` of an envelope: where and when a change was made.

`file` and `pos` are no place in a binlog. They order the messages of all shards as the merged
stream does, for readers that sort by the two numbers (Hudi): the commit time, and `seq` within it.
"""

from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from event_token import EventToken, MariadbGtidSet
from spark_consumers.table_topics.envelope import column_types as types
from spark_consumers.table_topics.envelope.connect_schema import ConnectField, ConnectSchema
from spark_consumers.table_topics.envelope.json_text import quoted
from spark_consumers.table_topics.envelope.options import EnvelopeOptions
from topics.records.table_shape import TableShape

# The release of Debezium whose envelope this is; readers may look at it.
DEBEZIUM_VERSION: Final = "3.6.0.Final"
_SNAPSHOTS: Final = "true,first,first_in_data_collection,last_in_data_collection,last,false"
_TEXT: Final = ConnectSchema("string")
_REQUIRED_TEXT: Final = _TEXT.required()
_LONG: Final = ConnectSchema("int64")
_REQUIRED_LONG: Final = _LONG.required()

SOURCE: Final = ConnectSchema(
    "struct",
    optional=False,
    name="io.debezium.connector.mysql.Source",
    version=1,
    fields=(
        ConnectField("version", _REQUIRED_TEXT),
        ConnectField("connector", _REQUIRED_TEXT),
        ConnectField("name", _REQUIRED_TEXT),
        ConnectField("ts_ms", _REQUIRED_LONG),
        ConnectField(
            "snapshot",
            ConnectSchema(
                "string",
                name=types.ENUM,
                version=1,
                parameters=(("allowed", f"{_SNAPSHOTS},incremental"),),
                default="false",
            ),
        ),
        ConnectField("db", _REQUIRED_TEXT),
        ConnectField("sequence", _TEXT),
        ConnectField("ts_us", _LONG),
        ConnectField("ts_ns", _LONG),
        ConnectField("table", _TEXT),
        ConnectField("server_id", _REQUIRED_LONG),
        ConnectField("gtid", _TEXT),
        ConnectField("file", _REQUIRED_TEXT),
        ConnectField("pos", _REQUIRED_LONG),
        ConnectField("row", ConnectSchema("int32", optional=False)),
        ConnectField("thread", _LONG),
        ConnectField("query", _TEXT),
        # Not Debezium's.
        ConnectField("shard", _TEXT),
        ConnectField("token", _TEXT),
        ConnectField("keyspace", _TEXT),
    ),
)


def constants_of(options: EnvelopeOptions, shape: TableShape) -> dict[str, str | int | None]:
    """Return the fields that are the same in all messages of a table."""
    return {
        "version": DEBEZIUM_VERSION,
        "name": options.prefix,
        "db": shape.database,
        "table": shape.table,
        "server_id": 0,
        "row": 0,
        "thread": None,
        "query": None,
        "keyspace": options.keyspace,
    }


def _sequences(rows: pa.RecordBatch) -> pa.Array:
    """Return `["<shard>","<seq>"]`."""
    seqs = rows["seq"].cast(pa.string())
    return pc.binary_join_element_wise("[", quoted(rows["shard"]), ',"', seqs, '"]', "")


def _connectors(rows: pa.RecordBatch) -> pa.Array:
    """Return the family of each row's server, which is that of its shard's tokens."""
    shards = rows["shard"].dictionary_encode()
    families = []
    for i in range(len(shards.dictionary)):
        first = pc.index(shards.indices, i).as_py()
        position = EventToken.from_string(rows["token"][first].as_py()).position
        families.append("mariadb" if isinstance(position, MariadbGtidSet) else "mysql")
    return pa.array(families, pa.string()).take(shards.indices)


# The fields that differ by row, from the columns of decoded rows.
VARIABLES: Final[Mapping[str, Callable[[pa.RecordBatch], pa.Array]]] = {
    "connector": _connectors,
    "ts_ms": lambda rows: pc.divide(rows["timestamp_us"], 1000),
    "snapshot": lambda rows: pc.if_else(pc.equal(rows["op"], "READ"), "incremental", "false"),
    "sequence": _sequences,
    "ts_us": lambda rows: rows["timestamp_us"],
    "ts_ns": lambda rows: pc.multiply(rows["timestamp_us"], 1000),
    "gtid": lambda rows: pc.if_else(
        pc.equal(rows["gtid"], ""), pa.scalar(None, pa.string()), rows["gtid"]
    ),
    "file": lambda rows: pc.binary_join_element_wise(
        "shardstream", rows["timestamp_us"].cast(pa.string()), "."
    ),
    "pos": lambda rows: rows["seq"],
    "shard": lambda rows: rows["shard"],
    "token": lambda rows: rows["token"],
}
