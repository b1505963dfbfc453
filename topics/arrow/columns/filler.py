"""Fills Arrow column builders from the records of shard logs.

Typed for mypyc: the throughput of every Spark reader depends on it.
"""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from topics.arrow.columns.builders import BooleanBuilder, Int64Builder, TextBuilder
from topics.arrow.columns.envelope_columns import (
    AFTER,
    BEFORE,
    DOUBTFUL,
    NEW,
    READ_BEFORE,
    EnvelopeColumns,
    HopFilter,
    KeyRangeFilter,
    opaque_token,
    write_absent,
    write_texts,
)
from topics.arrow.columns.images import (
    HISTORY,
    NO_IMAGE,
    PRESENT,
    Image,
    KeyColumns,
    RowEndColumn,
    SkippedImage,
    whole_image,
)
from topics.errors import RowImageMissing
from topics.reading.merge import seq_error
from topics.records.envelope import NULL, EnvelopeReader

# What a plan says about records of its schema.
SKIP: Final = 0
ROW: Final = 1
STATEMENT: Final = 2


class Plan:
    """What is done with the records of one schema."""

    def __init__(
        self,
        *,
        kind: int,
        schema_id: int,
        envelope_version: int,
        names: list[str],
        before: Image | None = None,
        after: Image | None = None,
        key: KeyColumns | None = None,
        passed: SkippedImage | None = None,
        row_end: RowEndColumn | None = None,
        table: tuple[bytes, bytes] | None = None,
    ) -> None:
        """`names`: the columns, in wire order. Without images the body of a row is passed.

        `passed`: for an image that a key range does not see. `row_end`: of a table with versions.
        """
        self.kind: i64 = kind
        self.schema_id: i64 = schema_id
        self.envelope_version: i64 = envelope_version
        self.names: list[str] = names
        self.before: Image | None = before
        self.after: Image | None = after
        self.key: KeyColumns | None = key
        self.passed: SkippedImage | None = passed
        self.row_end: RowEndColumn | None = row_end
        self.table: tuple[bytes, bytes] | None = table
        # The bit maps of whole images, to be compared instead of counting bits.
        self.whole: bytes = whole_image(len(names))


def _with_home(key: bytes, keyspace_id: bytes | None) -> bytes:
    """Return a key, a JSON array, with the keyspace id as its last part; empty: no key."""
    if not key:
        return key
    home = b"" if keyspace_id is None else keyspace_id.hex().encode("ascii")
    return key[:-1] + b',"' + home + b'"]'


class ColumnFiller:
    """Decodes records: of one shard log and in order, or of any shards in any order."""

    def __init__(
        self,
        *,
        shard: str | None,
        columns: EnvelopeColumns,
        event_types: list[bytes],
        ops: list[bytes],
        plan_of: Callable[[int], Plan],
        token_version: int,
        key_range: KeyRangeFilter | None,
        keys_have_home: bool,
    ) -> None:
        """`plan_of` gives the plan of a schema id; it is asked once for each.

        Without a `shard` the records are of any shards, and their seqs are not checked.
        `key_range`: where only a part of the shard is wanted. `keys_have_home`: the keyspace id is
        the last part of each key.
        """
        self.key_range: KeyRangeFilter | None = key_range
        self.keys_have_home: bool = keys_have_home
        self._seen: i64 = BEFORE | AFTER  # the images of the row at hand that the range sees
        self.is_mixed: bool = shard is None
        self.shard: bytes = b"" if shard is None else shard.encode("utf-8")
        self.columns: EnvelopeColumns = columns
        self.event_types: list[bytes] = event_types
        self.ops: list[bytes] = ops
        self.none_op: i64 = ops.index(b"NONE")
        self.insert_op: i64 = ops.index(b"INSERT")
        self.update_op: i64 = ops.index(b"UPDATE")
        self.delete_op: i64 = ops.index(b"DELETE")
        self.plan_of: Callable[[int], Plan] = plan_of
        self.token_version: i64 = token_version
        self.plans: dict[int, Plan] = {}
        self.envelope: EnvelopeReader = EnvelopeReader()
        self.seq: i64 = 0  # of the last record
        self.offset: i64 = -1  # of the record at hand, for messages
        self.rows: i64 = 0  # appended since the last take
        self.late_before_us: i64 = 0
        self.hop_filter: HopFilter | None = None  # where the stream hopped here without marks
        self._token_number: i64 = 0
        self._token: bytes = b""  # opaque
        self._dates_before: dict[int, str] = {}
        self._dates_after: dict[int, str] = {}
        self._no_dates: dict[int, str] = {}

    def fill(self, records: list[bytes], offsets: list[int]) -> None:
        """Append records; those of one shard must have consecutive seqs.

        IndexError, ValueError: a record's bytes are broken (`offset` says which one's).
        LogGap, LogRepeat: a record is missing or repeated.
        """
        envelope = self.envelope
        plan: Plan | None = None
        at: i64 = 0
        for record in records:
            offset: i64 = offsets[at]
            at += 1  # noqa: SIM113 - enumerate() would not count in native integers
            self.offset = offset
            envelope.open(record)
            if plan is None or plan.schema_id != envelope.schema_id:
                plan = self._plan(int(envelope.schema_id))
            self._decode_record(plan, offset)

    def _plan(self, schema_id: int) -> Plan:
        if schema_id not in self.plans:
            self.plans[schema_id] = self.plan_of(schema_id)
        return self.plans[schema_id]

    def _decode_record(self, plan: Plan, offset: i64) -> None:
        envelope = self.envelope
        if not self.is_mixed and envelope.seq != self.seq + 1:
            raise seq_error(self._place(), int(self.seq + 1), int(envelope.seq))
        self.seq = envelope.seq
        if plan.kind == SKIP:
            return
        envelope.take_token()
        verdict: i64 = NEW if self.hop_filter is None else self.hop_filter.verdict(envelope)
        if verdict == READ_BEFORE:
            return
        envelope.take_rest(plan.envelope_version)
        if not self._is_seen(plan) or self._is_of_other_table(plan):
            return
        self._add_token(verdict)
        self._add_envelope()
        self._add_place(plan, offset)
        self._add_dates(plan)
        self._add_keyspace_ids()
        if self.columns.added:
            self._add_added()
        if plan.kind == ROW:
            self._take_images(plan)
        else:
            self._take_statement(plan)
        envelope.cursor.check_end()
        self.rows += 1

    def _place(self) -> str:
        """Return the place of the current record, for errors."""
        return f"shard {self.shard.decode('utf-8')}, offset {self.offset}"

    def _add_token(self, verdict: i64) -> None:
        """Append the token, and what follows from its time."""
        envelope = self.envelope
        columns = self.columns
        if envelope.token_number != self._token_number:
            if self.is_mixed:
                self.shard = envelope.shard
            elif envelope.shard != self.shard:
                raise ValueError("its token is of another shard")
            if columns.token is not None:
                self._token = opaque_token(envelope, self.token_version)
            self._token_number = envelope.token_number
        timestamp_us = envelope.timestamp_us
        if columns.timestamp_us is not None:
            columns.timestamp_us.add(timestamp_us)
        if columns.late is not None:
            columns.late.add(timestamp_us < self.late_before_us)
        if columns.possible_duplicate is not None:
            columns.possible_duplicate.add(verdict == DOUBTFUL)
        if columns.token is not None:
            columns.token.add(self._token)

    def _add_envelope(self) -> None:
        """Append the fields between the token and the keyspace ids."""
        envelope = self.envelope
        columns = self.columns
        if columns.commit_us is not None:
            columns.commit_us.add(envelope.commit_us)
        if columns.gtid is not None:
            columns.gtid.add(envelope.bytes_at(envelope.gtid_at))
        if columns.row_index is not None:
            columns.row_index.add(envelope.row_index)
        if columns.last is not None:
            columns.last.add(envelope.last)
        if columns.database is not None:
            columns.database.add(envelope.bytes_at(envelope.database_at))
        if columns.table is not None:
            columns.table.add(envelope.bytes_at(envelope.table_at))
        if columns.type is not None:
            columns.type.add(self.event_types[envelope.type])
        if columns.op is not None:
            columns.op.add(self.ops[self._seen_op(envelope.op)])

    def _add_place(self, plan: Plan, offset: i64) -> None:
        """Append what says where the record lies."""
        columns = self.columns
        if columns.shard is not None:
            columns.shard.add(self.shard)
        if columns.seq is not None:
            columns.seq.add(self.seq)
        if columns.offset is not None:
            columns.offset.add(offset)
        if columns.schema_id is not None:
            columns.schema_id.add(plan.schema_id)
        if columns.record is not None:
            columns.record.add(self.envelope.cursor.record)

    def _is_of_other_table(self, plan: Plan) -> bool:
        """Return whether a statement names a table that was not asked for; most name none."""
        if plan.table is None:
            return False
        envelope = self.envelope
        table = envelope.bytes_at(envelope.table_at)
        return bool(table) and (envelope.bytes_at(envelope.database_at), table) != plan.table

    def _add_keyspace_ids(self) -> None:
        """Append the keyspace ids of the images that the range sees."""
        envelope = self.envelope
        if self.columns.keyspace_id_before is not None:
            at = envelope.keyspace_id_before_at if self._seen & BEFORE else NULL
            self._add_nullable(self.columns.keyspace_id_before, at)
        if self.columns.keyspace_id_after is not None:
            at = envelope.keyspace_id_after_at if self._seen & AFTER else NULL
            self._add_nullable(self.columns.keyspace_id_after, at)

    def _add_added(self) -> None:
        """Append the fields that versions after 1 have added to the envelope."""
        for name, builder in self.columns.added.items():
            value = self.envelope.added[name]
            if value is None:
                builder.add_null()
            elif isinstance(builder, TextBuilder) and isinstance(value, bytes):
                builder.add(value)
            elif isinstance(builder, TextBuilder):
                builder.add(str(value).encode("utf-8"))
            elif isinstance(builder, BooleanBuilder):
                builder.add(bool(value))
            elif isinstance(builder, Int64Builder) and isinstance(value, int):
                builder.add(value)

    def _add_nullable(self, into: TextBuilder, at: i64) -> None:
        if at == NULL:
            into.add_null()
        else:
            into.add(self.envelope.bytes_at(at))

    def _add_dates(self, plan: Plan) -> None:
        """Append the texts of invalid dates, of the images that the range sees."""
        envelope = self.envelope
        self._dates_before = envelope.dates_before if self._seen & BEFORE else self._no_dates
        self._dates_after = envelope.dates_after if self._seen & AFTER else self._no_dates
        into = self.columns.invalid_dates
        if into is None:
            return
        if not self._dates_before and not self._dates_after:
            into.add_null()
        else:
            out = into.values
            out.write(b'{"before":')
            write_texts(out, plan.names, self._dates_before)
            out.write(b',"after":')
            write_texts(out, plan.names, self._dates_after)
            out.write(b"}")
            into.end_value()

    def _take_images(self, plan: Plan) -> None:
        cursor = self.envelope.cursor
        columns = self.columns
        bits_before = self.envelope.columns_before
        bits_after = self.envelope.columns_after
        before = plan.before
        after = plan.after
        before_at: i64 = -1
        after_at: i64 = -1
        size: i64 = len(plan.whole)
        if (bits_before and len(bits_before) != size) or (bits_after and len(bits_after) != size):
            raise ValueError("a bit map of columns has the wrong size")
        if before is None or after is None:
            cursor.at = cursor.end
        else:
            if cursor.take_present():
                if self._seen & BEFORE:
                    before_at = cursor.at
                    before.read(cursor, bits_before, self._dates_before)
                else:
                    bits_before = b""
                    self._pass(plan, before)
            else:
                before.null()
            if not self._seen & AFTER:
                bits_after = b""
                cursor.at = cursor.end
                after.null()
            elif cursor.take_present():
                after_at = cursor.at
                after.read(cursor, bits_after, self._dates_after)
            else:
                after.null()
        if columns.has_keys():
            self._add_keys(plan, before_at, after_at)
        if columns.present_op is not None:
            self._add_present_op(columns.present_op, plan.row_end, before_at, after_at)
        if columns.absent is not None:
            self._add_absent(plan, bits_before, bits_after)
        if columns.statement is not None:
            columns.statement.add_null()

    def _is_seen(self, plan: Plan) -> bool:
        """Return whether the key range sees the record, and note which of its images."""
        if self.key_range is None or plan.kind != ROW:
            self._seen = BEFORE | AFTER
        else:
            try:
                self._seen = self.key_range.seen(self.envelope, plan.whole)
            except RowImageMissing as error:
                raise RowImageMissing(f"{self._place()}: {error}") from error
        return self._seen != 0

    def _seen_op(self, op: i64) -> i64:
        """Return what the range sees of an op: an update across its border comes or goes."""
        if op != self.update_op or self._seen == BEFORE | AFTER:
            return op
        return self.delete_op if self._seen == BEFORE else self.insert_op

    def _add_present_op(
        self, into: TextBuilder, row_end: RowEndColumn | None, before_at: i64, after_at: i64
    ) -> None:
        """Append what the change is to present rows, of which the history is none."""
        if row_end is None:
            into.add_null()
            return
        record = self.envelope.cursor.record
        before = row_end.kind_of(record, before_at, NO_IMAGE)
        after = row_end.kind_of(record, after_at, before)
        op: i64 = self._seen_op(self.envelope.op)
        if HISTORY in (before, after):
            op = self.none_op
            if before == PRESENT:
                op = self.delete_op
            elif after == PRESENT:
                op = self.insert_op
        into.add(self.ops[op])

    def _pass(self, plan: Plan, image: Image) -> None:
        """Pass an image that the range does not see."""
        if plan.passed is not None:
            plan.passed.read(self.envelope.cursor, b"", self._no_dates)
        image.null()

    def _add_keys(self, plan: Plan, before_at: i64, after_at: i64) -> None:
        """Append the key that the row has now (a DELETE: had), and the other one it had before."""
        old = b""
        new = b""
        if plan.key is not None:
            record = self.envelope.cursor.record
            old = plan.key.of_image(record, before_at)
            new = plan.key.of_image(record, after_at)
        if self.keys_have_home:
            envelope = self.envelope
            id_before = envelope.keyspace_id_at(envelope.keyspace_id_before_at)
            id_after = envelope.keyspace_id_at(envelope.keyspace_id_after_at)
            # An image that lacks the key or the sharding column is of a row that keeps it.
            if after_at >= 0:
                new = _with_home(new or old, id_before if id_after is None else id_after)
            old = _with_home(old, id_before)
        # A MINIMAL after image leaves out a key that has not changed.
        self.columns.add_keys(new or old, old if old and new and old != new else b"")

    def _add_absent(self, plan: Plan, bits_before: bytes, bits_after: bytes) -> None:
        """Name the columns that an image lacks; no bits at all: there is no such image."""
        into = self.columns.absent
        if into is None:
            return
        whole = plan.whole
        if (not bits_before or bits_before == whole) and (not bits_after or bits_after == whole):
            into.add_null()
            return
        out = into.values
        out.write(b'{"before":')
        write_absent(out, plan.names, bits_before)
        out.write(b',"after":')
        write_absent(out, plan.names, bits_after)
        out.write(b"}")
        into.end_value()

    def _take_statement(self, plan: Plan) -> None:
        columns = self.columns
        if columns.statement is None:
            self.envelope.cursor.skip_bytes()
        else:
            columns.statement.add(self.envelope.cursor.take_bytes())
        if plan.before is not None:
            plan.before.null()
        if plan.after is not None:
            plan.after.null()
        columns.add_keys(b"", b"")
        if columns.present_op is not None:
            columns.present_op.add_null()
        if columns.absent is not None:
            columns.absent.add_null()
