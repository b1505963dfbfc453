"""What a change log's query tells its tasks and its commits."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from event_token import KeyRange, ShardName
from spark_consumers.decoding.output_columns import OutputColumns
from spark_consumers.sink_query.origin import Origin


@dataclass(frozen=True, slots=True)
class ChangeLogSpec:
    """The table, and the part of the stream that it gets.

    `output` and `schema` are its columns: as the tasks decode them, and as the files have them.
    `storage` are options of delta-rs.
    """

    path: str
    storage: Mapping[str, str]
    output: OutputColumns
    schema: pa.Schema
    origin: Origin

    @property
    def contiguous(self) -> bool:
        """Whether the query takes every record of its shards: a table's own log has holes."""
        return self.output.shape is None

    def has_whole(self, shard: str) -> bool:
        """Tell whether the query reads the whole key range of a shard; else it has holes too."""
        key_range = KeyRange.parse(self.origin.key_range)
        return key_range.includes(ShardName.parse(shard).key_range)
