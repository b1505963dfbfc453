"""What a change log's query tells its tasks and its commits."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from event_token import KeyRange
from spark_consumers.decoding.output_columns import OutputColumns
from spark_consumers.sink_query.origin import Origin


@dataclass(frozen=True, slots=True)
class ChangeLogSpec:
    """The table, and the part of the stream that it gets.

    `output` and `schema` are its columns: as the tasks decode them, and as the files have them.
    `contiguous`: the query takes every record of its shards, so a hole is an error; shards that
    reach beyond `key_range` may have holes. `storage` are options of delta-rs.
    """

    path: str
    storage: Mapping[str, str]
    output: OutputColumns
    schema: pa.Schema
    contiguous: bool
    key_range: KeyRange
    origin: Origin
