"""Turns a task's rows of a batch into messages in merged order, in bounded memory."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sinks.rule.homes import Version, version_at
from sinks.rule.policy import is_shadow_table
from sinks.rule.statements import (
    TableName,
    Unlogged,
    concerns,
    effect_of,
    has_rows_before,
    swap_of,
    to_be_copied,
    unlogged_by,
)
from sinks.table_topics.batch_writer import Message
from sinks.table_topics.envelope.table_encoder import TableEncoder, VersionRecords
from sinks.table_topics.moves import RecentHomes, RecordPlace, Vindexes, apply_moves, stays_at_home
from sinks.table_topics.transaction import Headers
from topics.arrow.decoders import TableDecoder
from topics.arrow.key_scope import KeyScope
from topics.arrow.output_columns import ROUTE
from topics.errors import CannotApply
from topics.records.table_shape import TableShape, known_schema, schema_id_of
from topics.records.vevent import EventType, Op

# Rows that are encoded together: more do not make it faster, and their messages, of a
# few kB each with schemas, are in memory at once.
ROWS_AT_ONCE = 8_192

LATE_HEADER = "shardstream.late"
DUPLICATE_HEADER = "shardstream.possible_duplicate"
_FLAGS = (("late", LATE_HEADER), ("possible_duplicate", DUPLICATE_HEADER))
_ORDER = [("timestamp_us", "ascending"), ("shard", "ascending"), ("seq", "ascending")]
# What the rule of moves needs of a row, and the source does not have without decoding it.
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
        fetch: Callable[[RecordPlace], bytes],
        key_scope: KeyScope = KeyScope.KEYSPACE,
    ) -> None:
        self._text_of = text_of
        self._decoder = TableDecoder(text_of, key_scope, columns=_MOVE_COLUMNS)
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
        groups = self._groups(rows)
        is_delete = _bools(pc.equal(rows["op"], Op.DELETE.value))
        old_half = _bools(pc.equal(rows[ROUTE], rows["old_key_hash"])) | is_delete
        new_half = _bools(pc.equal(rows[ROUTE], rows["key_hash"])) & ~is_delete
        moves = apply_moves(homes, self._movable(rows, groups, old_half, new_half))
        old_half[list(moves.without_old)] = False
        new_half[list(moves.without_new)] = False
        flags = _flags(rows)
        found: list[tuple[int, Message]] = []
        for group in groups:
            halves = (old_half[group.rows].tobytes(), new_half[group.rows].tobytes())
            records = VersionRecords(
                group.records, group.version.envelope_version, group.ops, *halves
            )
            found += _messages(group.version, records, group.rows, flags)
        for number, place in moves.others:
            found.append((number, self._other(number, place, flags)))
        found.sort(key=itemgetter(0))
        for _, message in found:
            yield message

    def _groups(self, rows: pa.Table) -> list["_Group"]:
        schema_ids = rows["schema_id"].to_numpy()
        groups = []
        for schema_id in np.unique(schema_ids).tolist():
            numbers = np.flatnonzero(schema_ids == schema_id)
            chosen = rows.select(["record", "op"])
            chosen = chosen if len(numbers) == len(rows) else chosen.take(pa.array(numbers))
            records, ops = chosen["record"].to_pylist(), chosen["op"].to_pylist()
            groups.append(_Group(schema_id, self._version(schema_id), numbers, records, ops))
        return groups

    def _version(self, schema_id: int) -> "_Version":
        found = self._versions.get(schema_id)
        if found is None:
            shape = self._decoder.shape(schema_id)
            encoder = self._open_encoder(shape)
            self._ensure_topic(encoder.topic)
            schema = known_schema(self._text_of(schema_id), schema_id, "a shard log")
            found = self._versions[schema_id] = _Version(
                f"{shape.database}.{shape.table}",
                encoder,
                schema.envelope_version,
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
        decoded = [self._decoder.decode(g.schema_id, g.records, g.ops) for g in movable]
        found = pa.Table.from_batches(decoded)
        found = found.append_column("table", pa.concat_arrays(tables)).take(in_order)
        numbers = numbers[in_order]
        for name, values in (
            ("row", pa.array(numbers)),
            ("old_half", pa.array(old_half[numbers])),
            ("new_half", pa.array(new_half[numbers])),
            ("offset", rows["offset"].take(numbers)),
        ):
            found = found.append_column(name, values)
        return found

    def _other(self, number: int, place: RecordPlace, flags: Sequence["_Flag"]) -> Message:
        """Return the message of a row that is visible again, in the place of a DELETE."""
        record = self._fetch(place)
        version = self._version(schema_id_of(record, place.shard, place.offset))
        records = VersionRecords([record], version.envelope_version)
        # Of a changed key, the new one.
        return _messages(version, records, np.array([number]), flags)[-1][1]


@dataclass(frozen=True, slots=True)
class _Version:
    table: str
    encoder: TableEncoder
    envelope_version: int
    can_move: bool


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of one table version; `rows` are their numbers among all."""

    schema_id: int
    version: _Version
    rows: npt.NDArray[np.int64]
    records: list[bytes]
    ops: list[str]


# A header, and which rows have it.
_Flag = tuple[tuple[str, bytes], Bools]


def _flags(rows: pa.Table) -> list[_Flag]:
    """Return the headers that any row has."""
    return [
        ((name, b"1"), _bools(rows[column]))
        for column, name in _FLAGS
        if pc.any(rows[column]).as_py()
    ]


def _messages(
    version: _Version,
    records: VersionRecords,
    numbers: npt.NDArray[np.int64],
    flags: Sequence[_Flag],
) -> list[tuple[int, Message]]:
    """Return the messages of records, each with its row's number among all (`numbers`)."""
    written = version.encoder.encode(records, time.time_ns() // 1000)
    topic, of_messages = version.encoder.topic, written.headers
    found = []
    rows = numbers[written.rows].tolist()
    for i, (row, key, value) in enumerate(zip(rows, written.keys, written.values, strict=True)):
        headers: Headers = [of_messages[i]] if i in of_messages else []
        if flags:
            headers += [header for header, is_set in flags if is_set[row]]
        found.append((row, Message(topic, key, value, headers)))
    return found


def _bools(values: pa.Array | pa.ChunkedArray) -> Bools:
    found: Bools = pc.fill_null(values, False).to_numpy(zero_copy_only=False).copy()
    return found


def check_truncates(
    rows: pa.Table, tables: Collection[str], has_topic: Callable[[TableName], bool]
) -> None:
    """CannotApply at the first statement that empties a table with messages.

    `rows`: those of the source that a task has not written yet. `tables` (`database.table`): those
    that are written, empty for all. `has_topic` returns whether a table has a topic, and of a
    database whether any of its tables has one.
    """
    for record in _statements(rows):
        for what, at in _emptied(record):
            if _is_written(what, tables) and (has_topic(what) or has_rows_before(rows, what, at)):
                raise CannotApply(
                    f"{what.database}.{what.table or '*'}, shard {record['shard']}, seq "
                    f"{record['seq']}: TRUNCATE, DROP or CREATE OR REPLACE emptied the table on "
                    f"this shard, and --on-truncate is stop. Consumers of its topic still have the "
                    f"rows. To leave them there, start again with --on-truncate keep; for a topic "
                    f"without them, start with another --prefix from a copy"
                )


def unlogged_of(
    rows: pa.Table, tables: Collection[str], has_topic: Callable[[TableName], bool]
) -> list[Unlogged]:
    """Return the statements behind which tables with messages must be copied again.

    The arguments are those of `check_truncates`.
    """
    statements = _statements(rows)
    emptied = [each for record in statements for each in _emptied(record)]
    found = to_be_copied((e for record in statements for e in unlogged_by(record)), emptied)
    return [
        each for each in found if _is_written(each.what, tables) and concerns(each, has_topic, rows)
    ]


def _statements(rows: pa.Table) -> list[dict[str, Any]]:
    columns = ["statement", "database", "shard", "seq", "timestamp_us", "gtid"]
    statements = rows.filter(pc.equal(rows["type"], "DDL")).sort_by(_ORDER).select(columns)
    return list(statements.to_pylist())


def _emptied(record: Mapping[str, Any]) -> list[tuple[TableName, Version]]:
    statement, database = record["statement"], record["database"]
    swap = swap_of(statement, database)
    emptied = effect_of(statement, database).emptied if swap is None else swap.emptied
    at = version_at(record)
    return [(what, at) for what in emptied]


def is_among(what: TableName, tables: Collection[str]) -> bool:
    """Tell whether a table, or any of a database, is among tables (`database.table`)."""
    if what.table is None:
        return any(name.startswith(f"{what.database}.") for name in tables)
    return f"{what.database}.{what.table}" in tables


def _is_written(what: TableName, tables: Collection[str]) -> bool:
    if tables:
        return is_among(what, tables)
    return what.table is None or not is_shadow_table(what.table)
