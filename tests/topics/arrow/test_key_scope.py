"""With scope `shard` the keyspace id is the last part of a primary key."""

from dataclasses import replace

import pytest
from xxhash import xxh64_intdigest

from tests.sinks.rule.batches import ORDERS, Source, change
from topics.arrow.key_scope import KeyScope
from topics.errors import CannotApply, ShapeConflict
from topics.records.table_shape import Column, ValueKind
from topics.records.vevent import Row, VEvent

A, B = b"\x10\x00", b"\x90"


def scoped() -> Source:
    return Source(key_scope=KeyScope.SHARD)


def keys_of(event: VEvent) -> list[object]:
    """The keys of a change, and the ids in its images, as a task decodes them."""
    source = scoped()
    [row] = source.rows([event])
    decoded = source.decoder.decode(row["schema_id"], [row["record"]], [row["op"]])  # type: ignore[arg-type,list-item]
    [found] = decoded.to_pylist()
    for name in ("key", "old_key"):
        text = found[name]
        number = None if text is None else xxh64_intdigest(text.encode())
        signed = None if number is None else number - 2**64 * (number >= 2**63)
        assert row[f"{name}_hash"] == signed
    ids = [found[image] and found[image]["_keyspace_id"] for image in ("before", "after")]
    return [found["key"], found["old_key"], *ids]


def test_a_key_has_the_keyspace_id_and_changes_with_it() -> None:
    """INSERT, UPDATE, another home, another key, DELETE: the hashes are those of the whole key."""
    one: Row = {"id": 1, "value": 7}
    two: Row = {"id": 1, "value": 8}

    assert keys_of(change("-", 1, 1, None, one, ids=(None, A))) == [
        '[1,"1000"]',
        None,
        None,
        "1000",
    ]
    assert keys_of(change("-", 1, 1, one, two, ids=(A, A))) == ['[1,"1000"]', None, "1000", "1000"]
    assert keys_of(change("-", 1, 1, one, two, ids=(A, B))) == [
        *('[1,"90"]', '[1,"1000"]', "1000", "90"),
    ]
    assert keys_of(change("-", 1, 1, one, {"id": 2, "value": 7}, ids=(A, A))) == [
        *('[2,"1000"]', '[1,"1000"]', "1000", "1000"),
    ]
    assert keys_of(change("-", 1, 1, one, None, ids=(A, None))) == [
        '[1,"1000"]',
        None,
        "1000",
        None,
    ]


def test_a_partial_image_keeps_key_and_home() -> None:
    """A MINIMAL image leaves out the key and the sharding column, which did not change."""
    found = keys_of(change("-", 1, 1, {"id": 1}, {"value": 8}, ids=(A, None)))

    assert found == ['[1,"1000"]', None, "1000", "1000"]


def test_a_row_without_a_keyspace_id_stops_by_name() -> None:
    """After a reshard nobody could tell which of two rows of a key it is."""
    with pytest.raises(CannotApply, match=r"shop\.orders, shard -80, seq 3: .*no keyspace id"):
        scoped().changes([change("-80", 3, 1, None, {"id": 1, "value": 7})])


def test_a_table_with_a_column_of_that_name_stops_by_name() -> None:
    """Its values and the ids cannot both go there."""
    taken = Column("_keyspace_ID", ValueKind.LONG, "bigint")
    shape = replace(ORDERS, columns=(*ORDERS.columns, taken))
    row: Row = {"id": 1, "value": 7, "_keyspace_ID": 1}

    with pytest.raises(ShapeConflict, match=r"shop\.orders has a column '_keyspace_id'"):
        scoped().changes([change("-", 1, 1, None, row, ids=(None, A), shape=shape)])
