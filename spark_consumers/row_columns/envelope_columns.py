"""The envelope columns that a query asked for. Typed for mypyc."""

from librt.strings import read_i64_be
from xxhash import xxh64_digest

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
        self.present_op: TextBuilder | None = None
        self.record: TextBuilder | None = None
        self.key_hash: Int64Builder | None = None
        self.old_key_hash: Int64Builder | None = None

    def has_keys(self) -> bool:
        """Tell whether primary keys are needed."""
        return (
            self.key is not None
            or self.old_key is not None
            or self.key_hash is not None
            or self.old_key_hash is not None
        )

    def add_keys(self, key: bytes, old_key: bytes) -> None:
        """Append a row's primary key and the one it had before, as JSON; empty: none."""
        _add_key(self.key, self.key_hash, key)
        _add_key(self.old_key, self.old_key_hash, old_key)


def _add_key(text: TextBuilder | None, number: Int64Builder | None, key: bytes) -> None:
    if text is not None:
        if key:
            text.add(key)
        else:
            text.add_null()
    if number is not None:
        if key:
            number.add(read_i64_be(xxh64_digest(key), 0))
        else:
            number.add_null()
