"""Turns a task's rows of a batch into messages in merged order, in bounded memory."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.decoding.record_decoder import PLACES, RecordDecoder
from spark_consumers.errors import CannotApply
from spark_consumers.sink_query.frame import ROUTE
from spark_consumers.table_topics.batch_writer import Message
from spark_consumers.table_topics.envelope.headers import headers_of
from spark_consumers.table_topics.envelope.table_encoder import TableEncoder
from spark_consumers.table_topics.moves import Place, RecentHomes
from spark_consumers.table_topics.row_moves import Vindexes, judge_moves, stays_at_home
from spark_consumers.table_topics.transaction import Headers
from topics.records.table_shape import TableShape
from topics.records.vevent import EventType, Op
from topics.records.wire import schema_id_of

# Rows that are decoded and encoded together: more do not make it faster, and their messages, of a
# few kB each with schemas, are in memory at once.
ROWS_AT_ONCE = 8_192

LATE_HEADER = "shardstream.late"
DUPLICATE_HEADER = "shardstream.possible_duplicate"
_FLAGS = (("late", LATE_HEADER), ("possible_duplicate", DUPLICATE_HEADER))
_ORDER = [("timestamp_us", "ascending"), ("shard", "ascending"), ("seq", "ascending")]
# Of decoded rows, what the rule of moves needs.
_MOVE_COLUMNS = (
    *("op", "shard", "seq", "timestamp_us", "key", "old_key"),
    *("keyspace_id_before", "keyspace_id_after"),
)
Bools = npt.NDArray[np.bool_]
_NOTHING = pa.table({name: pa.array([], pa.string()) for name in _MOVE_COLUMNS})


class TableMessages:
    """Encodes rows of all tables; kept by a worker process.

    `open_encoder` makes the encoder of a table version, `ensure_topic` is called before the first
    message of a topic, `fetch` reads a record back from its log.
    `key_scope`: that of the rows' source. With SHARD a key has one home, and no row moves.
    """

    def __init__(
        self,
        text_of: Callable[[int], str],
        vindexes: Vindexes,
        *,
        open_encoder: Callable[[TableShape], TableEncoder],
        ensure_topic: Callable[[str], None],
        fetch: Callable[[Place], bytes],
        key_scope: KeyScope = KeyScope.KEYSPACE,
    ) -> None:
        self._decoder = RecordDecoder(text_of, key_scope, PLACES)
        self._key_scope = key_scope
        self._vindexes = vindexes
        self._open_encoder = open_encoder
        self._ensure_topic = ensure_topic
        self._fetch = fetch
        self._versions: dict[int, _Version] = {}

    def messages(self, rows: pa.Table, homes: RecentHomes) -> Iterator[Message]:
        """Yield the messages of rows (SINK_COLUMNS, offset, route), and take note of their homes.

        CannotApply on a row without a primary key.
        """
        rows = rows.filter(pc.equal(rows["type"], EventType.ROW.value))
        self._check_keys(rows)
        rows = rows.sort_by(_ORDER)
        for first in range(0, len(rows), ROWS_AT_ONCE):
            yield from self._part(rows.slice(first, ROWS_AT_ONCE), homes)

    def _check_keys(self, rows: pa.Table) -> None:
        is_keyless = rows["key_hash"].is_null()
        if not pc.any(is_keyless).as_py():
            return
        first = rows.filter(is_keyless).slice(0, 1).to_pylist()[0]
        has_key = bool(self._decoder.shape(first["schema_id"]).primary_key)
        why = (
            "a date in its primary key is invalid, such as 0000-00-00, so its message would have "
            "no key: leave the table out (name the others with --table)"
            if has_key
            else "the table has no primary key, so its messages would have no key: leave it out "
            "(name the others with --table), or give it one"
        )
        raise CannotApply(
            f"{first['database']}.{first['table']}, shard {first['shard']}, seq {first['seq']}: "
            f"{why}"
        )

    def _part(self, rows: pa.Table, homes: RecentHomes) -> Iterator[Message]:
        groups = self._decoded(rows)
        is_delete = _bools(pc.equal(rows["op"], Op.DELETE.value))
        old_half = _bools(pc.equal(rows[ROUTE], rows["old_key_hash"])) | is_delete
        new_half = _bools(pc.equal(rows[ROUTE], rows["key_hash"])) & ~is_delete
        moves = judge_moves(homes, self._movable(rows, groups, old_half, new_half))
        old_half[list(moves.without_old)] = False
        new_half[list(moves.without_new)] = False
        tables = []
        for group in groups:
            for found in group.version.encoder.encode(group.batch, time.time_ns() // 1000):
                row = group.rows[found["row"].to_numpy()]
                is_old = _bools(found["new_key"].is_valid()) | is_delete[row]
                keep = np.where(is_old, old_half[row], new_half[row])
                tables.append(_numbered(found, row, keep, group.version.topic))
        tables += [self._other(number, place) for number, place in moves.others]
        yield from _in_order(tables, rows)

    def _decoded(self, rows: pa.Table) -> list["_Group"]:
        schema_ids = rows["schema_id"].to_numpy()
        groups = []
        for schema_id in np.unique(schema_ids).tolist():
            numbers = np.flatnonzero(schema_ids == schema_id)
            chosen = rows.select(["record", "op"])
            chosen = chosen if len(numbers) == len(rows) else chosen.take(pa.array(numbers))
            version = self._version(schema_id)
            batch = self._decoder.decode(
                schema_id, chosen["record"].to_pylist(), chosen["op"].to_pylist()
            )
            groups.append(_Group(version, numbers, batch))
        return groups

    def _version(self, schema_id: int) -> "_Version":
        found = self._versions.get(schema_id)
        if found is None:
            shape = self._decoder.shape(schema_id)
            encoder = self._open_encoder(shape)
            self._ensure_topic(encoder.topic)
            found = self._versions[schema_id] = _Version(
                encoder.topic,
                f"{shape.database}.{shape.table}",
                encoder,
                can_move=self._key_scope is KeyScope.KEYSPACE
                and not stays_at_home(shape, self._vindexes),
            )
        return found

    def _movable(
        self, rows: pa.Table, groups: Sequence["_Group"], old_half: Bools, new_half: Bools
    ) -> pa.Table:
        """Return the rows of tables whose rows may move, in merged order."""
        movable = [group for group in groups if group.version.can_move]
        if not movable:
            return _NOTHING
        numbers = np.concatenate([group.rows for group in movable])
        in_order = np.argsort(numbers)
        tables = [pa.repeat(g.version.table, len(g.rows)) for g in movable]
        columns = {
            name: pa.concat_arrays([group.batch[name] for group in movable])
            for name in _MOVE_COLUMNS
        }
        found = pa.table({**columns, "table": pa.concat_arrays(tables)}).take(in_order)
        numbers = numbers[in_order]
        for name, values in (
            ("row", pa.array(numbers)),
            ("old_half", pa.array(old_half[numbers])),
            ("new_half", pa.array(new_half[numbers])),
            ("offset", rows["offset"].take(numbers)),
        ):
            found = found.append_column(name, values)
        return found

    def _other(self, number: int, place: Place) -> pa.Table:
        """Return the message of a row that is visible again, in the place of a DELETE."""
        record = self._fetch(place)
        schema_id = schema_id_of(record, place.shard, place.offset)
        version = self._version(schema_id)
        batch = self._decoder.decode(schema_id, [record])
        found = pa.Table.from_batches(version.encoder.encode(batch, time.time_ns() // 1000))
        last = found.combine_chunks().slice(len(found) - 1)  # of a changed key, the new one
        return _numbered(last.to_batches()[0], np.array([number]), np.array([True]), version.topic)


@dataclass(frozen=True, slots=True)
class _Version:
    topic: str
    table: str
    encoder: TableEncoder
    can_move: bool


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of one table version; `rows` are their numbers among all."""

    version: _Version
    rows: npt.NDArray[np.int64]
    batch: pa.RecordBatch


def _numbered(
    found: pa.RecordBatch, row: npt.NDArray[np.int64], keep: Bools, topic: str
) -> pa.Table:
    """Return messages with the numbers of their rows among all of the part, and their topic."""
    columns = {name: found[name] for name in found.schema.names}
    columns |= {"row": pa.array(row), "topic": pa.repeat(topic, len(found))}
    table = pa.table(columns)
    return table if keep.all() else table.filter(pa.array(keep))


def _in_order(tables: Sequence[pa.Table], rows: pa.Table) -> Iterator[Message]:
    if not tables:
        return
    found = pa.concat_tables(tables)
    number = found["row"].to_numpy()
    if len(tables) > 1:
        order = np.argsort(number, kind="stable")
        found, number = found.take(order), number[order]
    flags = [
        (name, _bools(rows[column])[number])
        for column, name in _FLAGS
        if pc.any(rows[column]).as_py()
    ]
    columns = (found[name].to_pylist() for name in ("topic", "key", "value", "old_key", "new_key"))
    for i, (topic, key, value, old_key, new_key) in enumerate(zip(*columns, strict=True)):
        headers: Headers = []
        if old_key is not None or new_key is not None:
            headers = list(headers_of(old_key, new_key))
        headers += [(name, b"1") for name, is_set in flags if is_set[i]]
        yield Message(topic, key, value, headers)


def _bools(values: pa.Array | pa.ChunkedArray) -> Bools:
    found: Bools = pc.fill_null(values, False).to_numpy(zero_copy_only=False).copy()
    return found
