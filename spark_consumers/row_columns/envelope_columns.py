"""The envelope columns that a query asked for. Typed for mypyc."""

from spark_consumers.row_columns.builders import BooleanBuilder, Int64Builder, TextBuilder


class EnvelopeColumns:
    """One builder per envelope column; None for columns that were not requested."""

    def __init__(self) -> None:
        """Start without requested columns."""
        self.type: TextBuilder | None = None
        self.database: TextBuilder | None = None
        self.table: TextBuilder | None = None
        self.op: TextBuilder | None = None
        self.statement: TextBuilder | None = None
        self.key: TextBuilder | None = None
        self.old_key: TextBuilder | None = None
        self.absent: TextBuilder | None = None
        self.off_calendar: TextBuilder | None = None
        self.shard: TextBuilder | None = None
        self.seq: Int64Builder | None = None
        self.offset: Int64Builder | None = None
        self.timestamp_us: Int64Builder | None = None
        self.commit_us: Int64Builder | None = None
        self.gtid: TextBuilder | None = None
        self.token: TextBuilder | None = None
        self.row_index: Int64Builder | None = None
        self.last: BooleanBuilder | None = None
        self.late: BooleanBuilder | None = None
        self.possible_duplicate: BooleanBuilder | None = None
        self.schema_id: Int64Builder | None = None
        self.keyspace_id_before: TextBuilder | None = None
        self.keyspace_id_after: TextBuilder | None = None
