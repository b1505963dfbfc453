"""The upsert rule in bulk, over Arrow tables of changes and stored rows. Pure.

Nearly every change simply replaces what its key had: the last one in merged order wins. Which keys
need more is found here in bulk: rows that move, rows without a keyspace id on several shards, late
rows beside others, and partial row images. Those keys go one by one through the rule of `homes`.
`reduce_changes` merges the changes of a batch with each other, `merge` with what a table has.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sinks.rule.homes import (
    ABSENT,
    COMPARE,
    DELETED,
    HOME,
    KEY,
    META,
    SEQ,
    SHARD,
    TIME,
    TOKEN,
    Version,
    is_replaced,
    no_stored_row,
    range_of,
    settle,
    version_of,
)
from sinks.rule.policy import OnPartial

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
# The numbers of the rows that a row is made of, the newest first: one, unless it was partial.
Layers = tuple[int, ...]
# Ends the layers of a partial row whose other columns are to be NULL.
_NULLS = -1


def flags_of(flags: pa.Array | pa.ChunkedArray) -> Flags:
    """Return booleans as an array that may be written to."""
    return np.array(flags.to_numpy(zero_copy_only=False), dtype=np.bool_)


def as_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema; those that they lack are null."""
    present = set(rows.schema.names)
    columns = [
        rows[field.name].cast(field.type)
        if field.name in present
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def reduce_changes(
    table: str,
    changes: pa.Table,
    removals: Sequence[Version] = (),
    on_partial: OnPartial = OnPartial.STOP,
) -> pa.Table:
    """Return the last change of each key and home, without those that a statement removed.

    `changes`: META, then columns of the table; in any order. CannotApply: a partial row image
    follows the DELETE of its row, unless `on_partial` accepts it. `table`: its name for that error.
    """
    if removals:
        changes = changes.filter(pc.invert(removed(removals, changes)))
    changes = changes.combine_chunks()
    codes = pc.dictionary_encode(changes[KEY].combine_chunks()).indices.to_numpy()
    is_alone = np.bincount(codes)[codes] == 1 if len(codes) else np.zeros(0, np.bool_)
    if is_alone.all():
        return changes
    several = np.flatnonzero(~is_alone)
    places = changes.select([SHARD, SEQ, TIME]).take(several)
    order = several[merged_order(places, codes[several])]
    starts = np.flatnonzero(np.r_[True, np.diff(codes[order]) != 0])
    ends = np.r_[starts[1:], len(order)]
    doubtful = is_doubtful(changes.select(META.names).take(order), np.repeat(starts, ends - starts))
    is_mixed = np.logical_or.reduceat(doubtful, starts)
    last = np.concatenate([np.flatnonzero(is_alone), order[ends[~is_mixed] - 1]])
    whole = changes.take(np.sort(last))
    if not is_mixed.any():
        return whole
    mixed = (order[a:b] for a, b in zip(starts[is_mixed], ends[is_mixed], strict=True))
    rows = [each for key in mixed for each in _settled_layers(table, changes, key, on_partial)]
    return pa.concat_tables([whole, _still_partial(changes, rows)])


def merged_order(changes: pa.Table, keys: npt.NDArray[np.integer]) -> Numbers:
    """Return the order of changes by key, and in that the order of the merged stream."""
    shard = _rank_codes(changes, SHARD)
    return np.lexsort((changes[SEQ].to_numpy(), shard, changes[TIME].to_numpy(), keys))


def is_doubtful(changes: pa.Table, first: Numbers) -> Flags:
    """Tell of changes whether the last one of their key may not simply win over the others.

    `changes`: in merged order of each key. `first`: the index of the first change of each one's
    key. They are in doubt if the key has several homes, or a change must be compared or is partial.
    """
    home, shard = _rank_codes(changes, HOME), _rank_codes(changes, SHARD)
    found = flags_of(changes[COMPARE]) | flags_of(pc.is_valid(changes[ABSENT]))
    found |= (home != home[first]) | ((home < 0) & (shard != shard[first]))
    return found


def _rank_codes(changes: pa.Table, name: str) -> Numbers:
    """Number the values of a column by their order; -1 for null."""
    encoded = pc.dictionary_encode(changes[name].combine_chunks())
    ranks = np.argsort(pc.sort_indices(encoded.dictionary).to_numpy()).astype(np.int64)
    indices = pc.fill_null(encoded.indices, -1).to_numpy()
    return np.where(indices < 0, -1, ranks[indices] if len(ranks) else -1)


@dataclass(frozen=True, slots=True)
class Overlay:
    """Lays partial row images of a key over the row that they change.

    `knows_stored`: whether all stored rows of the key are known; if not, an image that meets none
    stays partial. CannotApply: there is no row to lay it over, unless `on_partial` accepts that.
    """

    table: str
    key: str
    on_partial: OnPartial = OnPartial.STOP
    knows_stored: bool = True

    def __call__(self, base: Version | None, change: Version) -> Version:
        """Return the whole row that a change leaves."""
        if base is None and not self.knows_stored:
            return change
        if base is not None and base.row is not None:
            below, is_partial = cast("Layers", base.row), base.is_partial
        elif self.on_partial is OnPartial.INSERT_NULLS:
            below, is_partial = (_NULLS,), False
        else:
            raise no_stored_row(self.table, self.key, change)
        layers = (*cast("Layers", change.row), *below)
        return replace(change, row=layers, is_partial=is_partial)


def layers_of(version: Version) -> Layers:
    """Return the numbers of the rows that a version is made of, also those of a tombstone."""
    return (version.number,) if version.row is None else cast("Layers", version.row)


def laid_over(
    rows: pa.Table, layered: Sequence[Layers], absent: Mapping[int, Collection[str]]
) -> pa.Table:
    """Return rows that are made of several: each column is that of the newest one that has it.

    `absent`: the columns that partial rows lack, by their numbers.
    """
    columns = []
    for name in rows.column_names:
        taken = [
            next((i for i in layers if i == _NULLS or name not in absent.get(i, ())), layers[0])
            for layers in layered
        ]
        numbers = np.array(taken, np.int64)
        columns.append(rows[name].take(pa.array(numbers, mask=numbers == _NULLS)))
    return pa.table(columns, schema=rows.schema)


def absent_columns(rows: pa.Table) -> dict[int, Collection[str]]:
    """Return the columns that partial changes lack, by number."""
    partial = np.flatnonzero(flags_of(pc.is_valid(rows[ABSENT])))
    names = rows[ABSENT].take(pa.array(partial)).to_pylist()
    return {int(i): found for i, found in zip(partial, names, strict=True)}


def _settled_layers(
    table: str, changes: pa.Table, numbers: Numbers, on_partial: OnPartial
) -> list[Layers]:
    """Return the layers of each row and tombstone that the changes of one key leave."""
    rows = changes.select(META.names).take(numbers).to_pylist()
    versions = [version_of(row, int(number)) for row, number in zip(rows, numbers, strict=True)]
    overlay = Overlay(table, rows[0][KEY], on_partial, knows_stored=False)
    return [layers_of(version) for version in settle((), versions, overlay).versions]


def _still_partial(changes: pa.Table, rows: Sequence[Layers]) -> pa.Table:
    """Return the rows that changes leave where they lie over each other.

    A row lacks the columns that all its layers lack, and is compared if one of them must be.
    """
    numbers = sorted({number for layers in rows for number in layers} - {_NULLS})
    some = changes.select([ABSENT, COMPARE]).take(numbers).to_pylist()
    names = ((i, row[ABSENT]) for i, row in zip(numbers, some, strict=True))
    absent = {i: found for i, found in names if found is not None}
    compared = {i for i, row in zip(numbers, some, strict=True) if row[COMPARE]}

    def still_absent(layers: Layers) -> list[str] | None:
        if layers[-1] not in absent:
            return None
        return [n for n in absent[layers[0]] if all(n in absent[layer] for layer in layers)]

    made = {
        COMPARE: [not compared.isdisjoint(layers) for layers in rows],
        ABSENT: [still_absent(layers) for layers in rows],
    }
    found = laid_over(changes, rows, absent)
    for name, values in made.items():
        at, field = found.schema.get_field_index(name), META.field(name)
        found = found.set_column(at, field, pa.array(values, field.type))
    return found


def contested(
    rows: pa.Table,
    stored_home: pa.Array,
    stored_shard: pa.Array,
    hidden: pa.Array | None = None,
) -> pa.Array:
    """Tell of each change whether its key must be settled; the others are applied in bulk.

    `rows`: of `TableChanges`. Of the visible row that is stored of each row's key: `stored_home`
    and `stored_shard`, null where there is none. `hidden`: whether the key has a live row of
    another home, which the visible row hides.

    A key is contested if it has more than one home, or a change must be compared.
    """
    codes = pc.dictionary_encode(rows[KEY].combine_chunks()).indices.to_numpy()
    is_repeated = np.bincount(codes)[codes] > 1 if len(codes) else np.zeros(0, np.bool_)
    found = flags_of(rows[COMPARE]) | is_repeated | _has_moved(rows, stored_home, stored_shard)
    if hidden is not None:
        found |= flags_of(hidden)
    if not found.any():
        return pa.array(found)
    # All changes of a key are settled together.
    keys = rows[KEY].combine_chunks()
    return pc.is_in(keys, value_set=keys.filter(pa.array(found)))


def _has_moved(rows: pa.Table, stored_home: pa.Array, stored_shard: pa.Array) -> Flags:
    """Tell whether the visible row is at another home than the change."""
    is_stored = flags_of(pc.is_valid(stored_shard))
    differs = pc.not_equal(rows[HOME].combine_chunks(), stored_home)
    moved = is_stored & flags_of(pc.fill_null(differs, False))
    # Without both ids the key ranges of the shards decide.
    for i in np.flatnonzero(is_stored & ~flags_of(pc.is_valid(differs))):
        own, other = rows[SHARD][i].as_py(), stored_shard[i].as_py()
        moved[i] = own != other and not range_of(own).overlaps(range_of(other))
    return moved


def home_bounds(shard: str) -> tuple[bytes, bytes | None]:
    """Return the first keyspace id of a shard, and the first one after it (None: no end).

    Ids compare with them as bytes.
    """
    # Trailing zero bytes of bounds are insignificant.
    key_range = range_of(shard)
    return key_range.start.rstrip(b"\0"), key_range.end.rstrip(b"\0") if key_range.end else None


def removed(removals: Iterable[Version], rows: pa.Table) -> pa.Array:
    """Tell of each row whether one of the statements removed it.

    `removals`: the places of the statements. `rows`: columns _home, _shard, _seq, _time_us, and
    _token where it is kept. A row goes if the statement is newer, and both are of one shard,
    wherever the row's home is; or the key ranges of both shards overlap, as after a reshard, and
    the home lies in that of the statement's shard.
    """
    gone: Flags = np.zeros(rows.num_rows, np.bool_)
    for removal in removals:
        gone |= _removed_by(removal, rows)
    return pa.array(gone)


def _removed_by(statement: Version, rows: pa.Table) -> Flags:
    shard = rows[SHARD].combine_chunks()
    is_same_log = flags_of(pc.equal(shard, statement.shard))
    time_us, seq = rows[TIME].to_numpy(), rows[SEQ].to_numpy()
    is_before = (time_us < statement.timestamp_us) | (
        (time_us == statement.timestamp_us) & flags_of(pc.less(shard, statement.shard))
    )
    gone: Flags = np.where(is_same_log, seq < statement.seq, is_before)
    gone &= is_same_log | _is_in_range(statement.shard, rows)
    if TOKEN in rows.column_names:
        _keep_newer(statement, rows, gone, gone & ~is_same_log)
    return gone


def _is_in_range(shard: str, rows: pa.Table) -> Flags:
    home = rows[HOME].combine_chunks()
    lower, upper = home_bounds(shard)
    within = pc.greater_equal(home, pa.scalar(lower, home.type))
    if upper is not None:
        within = pc.and_(within, pc.less(home, pa.scalar(upper, home.type)))
    own = range_of(shard)
    shards = rows[SHARD].combine_chunks()
    overlapping = [s for s in pc.unique(shards).to_pylist() if own.overlaps(range_of(s))]
    is_near = pc.is_in(shards, value_set=pa.array(overlapping, pa.string()))
    return flags_of(pc.and_(is_near, pc.fill_null(within, True)))


def _keep_newer(statement: Version, rows: pa.Table, gone: Flags, doubtful: Flags) -> None:
    """Between two logs the tokens decide."""
    for i in np.flatnonzero(doubtful):
        token = rows[TOKEN][i].as_py()
        version = Version(
            rows[SHARD][i].as_py(), rows[SEQ][i].as_py(), rows[TIME][i].as_py(), None, None, token
        )
        gone[i] = token is None or is_replaced(version, statement)


_VERSION = (HOME, SHARD, SEQ, TIME)
# The two tables of a place.
VISIBLE, HIDDEN = 0, 1


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The stored rows of some keys in one table.

    `key_of`: the index of each row's key among those asked for. `known`: columns _home and _shard.
    `read` returns some of the rows, by their indexes, in that order.
    """

    key_of: Numbers
    known: pa.Table
    read: Callable[[Numbers], pa.Table]


@dataclass(frozen=True, slots=True)
class KeysBefore:
    """All that was stored of some keys before a batch.

    `keys`: those of its changes, and those of which one of its statements removes a row.
    """

    keys: pa.Array
    visible: StoredRows
    hidden: StoredRows

    @property
    def has_hidden(self) -> Flags:
        """Tell of each key whether it has hidden rows or tombstones."""
        found = np.zeros(len(self.keys), np.bool_)
        found[self.hidden.key_of] = True
        return found

    def visible_of(self, key_of: Numbers) -> Numbers:
        """Return the indexes of the visible rows of some keys, -1 where a key has none."""
        place = np.full(len(self.keys), -1, np.int64)
        place[self.visible.key_of] = np.arange(len(self.visible.key_of))
        return place[key_of]

    def is_contested(self, changes: pa.Table, key_of: Numbers) -> Flags:
        """Tell of changes, by their keys' indexes, whether their key must be settled."""
        at = self.visible_of(key_of)
        stored = pa.array(at, mask=at < 0)
        homes, shards = (
            self.visible.known[name].combine_chunks().take(stored) for name in (HOME, SHARD)
        )
        return flags_of(contested(changes, homes, shards, pa.array(self.has_hidden[key_of])))


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A stored version: in which of the two tables of its place, and its index in what is read."""

    table: int
    index: int
    version: Version


class VersionsOfKeys:
    """Rows of changes, and after them the stored rows of some keys, numbered.

    `rows`: their columns of a schema. `stored`: what is stored of each key, by its index.
    """

    def __init__(
        self, changes: pa.Table, before: KeysBefore, wanted: Flags, schema: pa.Schema
    ) -> None:
        """`wanted`: the keys whose stored rows are read."""
        parts = [as_schema(changes, schema)]
        number = changes.num_rows
        self.absent = absent_columns(changes)
        self.stored: dict[int, list[StoredVersion]] = {}
        for table, each in ((VISIBLE, before.visible), (HIDDEN, before.hidden)):
            chosen = np.flatnonzero(wanted[each.key_of])
            rows = each.read(chosen)
            parts.append(as_schema(rows, schema))
            names = [name for name in (*_VERSION, DELETED) if name in rows.column_names]
            versions = rows.select(names).to_pylist()
            for index, row in zip(chosen.tolist(), versions, strict=True):
                found = StoredVersion(table, index, version_of(row, number))
                self.stored.setdefault(int(each.key_of[index]), []).append(found)
                number += 1
        self.rows = pa.concat_tables(parts).combine_chunks()


@dataclass(frozen=True, slots=True)
class TableEdit:
    """What happens to one table: stored rows that go, by index, and rows that are added."""

    gone: Numbers
    added: pa.Table


@dataclass(frozen=True, slots=True)
class Merged:
    """What changes do to the table of visible rows and to that of hidden ones.

    `settled`: of each key that was settled, the shards of its live rows.
    """

    visible: TableEdit
    hidden: TableEdit
    settled: Mapping[str, tuple[str, ...]]


def merge(
    name: str,
    rows: pa.Table,
    before: KeysBefore,
    schema: pa.Schema,
    on_partial: OnPartial = OnPartial.STOP,
) -> Merged:
    """Merge changes (`TableChanges.rows`), at most one per key and home, into a table.

    `before`: all that is stored of their keys, and of others whose visible row is gone. `schema`:
    of hidden rows. CannotApply when a row lacks columns and no stored row has them; `name` is the
    table's, for that message; `on_partial` may accept it.
    """
    key_of = pc.index_in(rows[KEY].combine_chunks(), before.keys).to_numpy().astype(np.int64)
    is_settled = before.has_hidden
    is_partial = flags_of(pc.is_valid(rows[ABSENT]))
    is_settled[key_of[before.is_contested(rows, key_of) | is_partial]] = True
    is_plain = ~is_settled[key_of]
    edits = _settled(name, rows, key_of, before, is_settled, schema, on_partial)
    replaced = before.visible_of(key_of[is_plain])
    is_deleted = rows[DELETED].to_numpy()
    visible, hidden = (
        TableEdit(
            np.sort(np.concatenate([gone, np.array(edits.gone[table], np.int64)])),
            pa.concat_tables([as_schema(rows.filter(pa.array(plain)), schema), edits.rows(table)]),
        )
        for table, gone, plain in (
            (VISIBLE, replaced[replaced >= 0], is_plain & ~is_deleted),
            (HIDDEN, np.empty(0, np.int64), is_plain & is_deleted),
        )
    )
    return Merged(visible, hidden, edits.live)


def _settled(
    name: str,
    rows: pa.Table,
    key_of: Numbers,
    before: KeysBefore,
    is_settled: Flags,
    schema: pa.Schema,
    on_partial: OnPartial,
) -> "_Edits":
    chosen = np.flatnonzero(is_settled[key_of])
    some = rows.take(pa.array(chosen))
    all_of = VersionsOfKeys(some, before, is_settled, schema)
    changes: dict[int, list[Version]] = {}
    metas = some.select(META.names).to_pylist()
    for number, (key, row) in enumerate(zip(key_of[chosen].tolist(), metas, strict=True)):
        changes.setdefault(key, []).append(version_of(row, number))
    edits = _Edits(all_of)
    for key in sorted(changes.keys() | all_of.stored.keys()):
        overlay = Overlay(name, before.keys[key].as_py(), on_partial)
        edits.settle(overlay, all_of.stored.get(key, ()), changes.get(key, ()))
    return edits


@dataclass(frozen=True, slots=True)
class _Edits:
    """What the settled keys change in the two tables: rows that go, and versions that are added."""

    all_of: VersionsOfKeys
    gone: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    added: tuple[list[Version], list[Version]] = field(default_factory=lambda: ([], []))
    live: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def settle(
        self, overlay: Overlay, stored: Iterable[StoredVersion], changes: Sequence[Version]
    ) -> None:
        """Settle a key.

        A hidden row that becomes visible stays where it was until the next change of its key: the
        hidden rows are committed first, and until the visible ones are, it must not be lost.
        """
        places: dict[tuple[str, int, bool], dict[int, int]] = {}
        versions = []
        for each in stored:
            at = places.setdefault(_identity(each.version), {})
            if not at:
                versions.append(each.version)
            at[each.table] = each.index
        settled = settle(versions, changes, overlay)
        live = sorted(version.shard for version in settled.versions if version.row is not None)
        self.live[overlay.key] = tuple(live)
        if settled.visible is not None:
            at = places.pop(_identity(settled.visible), {})
            if VISIBLE not in at:
                self.added[VISIBLE].append(settled.visible)
            elif HIDDEN in at:
                self.gone[HIDDEN].append(at[HIDDEN])
        for version in settled.others:
            at = places.get(_identity(version), {})
            if at.pop(HIDDEN, None) is None:
                self.added[HIDDEN].append(version)
        for at in places.values():
            for table, index in at.items():
                self.gone[table].append(index)

    def rows(self, table: int) -> pa.Table:
        versions = self.added[table]
        layers = [layers_of(version) for version in versions]
        found = laid_over(self.all_of.rows, layers, self.all_of.absent)
        at = found.schema.get_field_index(DELETED)
        deleted = pa.array([version.row is None for version in versions], pa.bool_())
        return found.set_column(at, found.schema.field(at), deleted)


def _identity(version: Version) -> tuple[str, int, bool]:
    """Tell the versions of a key apart: an UPDATE that moves a row leaves two with one seq."""
    return version.shard, version.seq, version.row is None
