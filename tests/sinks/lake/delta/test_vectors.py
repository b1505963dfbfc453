"""Deletion vectors in Delta's format."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from event_token.errors import Halt
from sinks.lake.delta.log import (
    VectorPlace,
    decoded,
    encoded,
    from_z85,
    read_vectors,
    to_z85,
    write_vectors,
)
from sinks.lake.delta.storage import Storage

row_sets = st.sets(st.integers(0, 2**40), max_size=50).map(BitMap64)


@given(row_sets)
def test_a_vector_holds_its_rows(rows: BitMap64) -> None:
    """Sparse and dense sets, and those beyond 32 bits, come back as they were."""
    dense = rows | BitMap64(range(100_000))

    assert decoded(encoded(rows)) == rows
    assert decoded(encoded(dense)) == dense


@given(st.binary(max_size=40).filter(lambda value: len(value) % 4 == 0))
def test_z85_round_trips(value: bytes) -> None:
    """Text of a vector's name gives the bytes that it was made of."""
    assert from_z85(to_z85(value)) == value


def test_an_inline_vector_is_read(tmp_path: Path) -> None:
    """Other writers may put a short vector into the log itself."""
    rows = BitMap64([3, 4, 7, 11, 18, 29])
    vector = encoded(rows)
    text = to_z85(vector + bytes(-len(vector) % 4))
    place = VectorPlace("i", text, 0, len(vector), len(rows))

    assert read_vectors(Storage(str(tmp_path), {}), [place]) == [rows]
    assert to_z85(bytes.fromhex("864FD26FB559F75B")) == "HelloWorld"


@given(st.lists(row_sets.filter(bool), min_size=1, max_size=5))
def test_a_file_holds_many_vectors(
    tmp_path_factory: pytest.TempPathFactory, sets: list[BitMap64]
) -> None:
    """Each vector is found at its place, in any order."""
    storage = Storage(str(tmp_path_factory.mktemp("table")), {})

    places = write_vectors(storage, {str(i): rows for i, rows in enumerate(sets)})

    backwards = [places[str(i)] for i in reversed(range(len(sets)))]
    assert read_vectors(storage, backwards) == sets[::-1]
    assert len({place.path for place in backwards}) == 1


def test_a_lost_or_damaged_vector_halts(tmp_path: Path) -> None:
    """Deleted rows never come back because a vector cannot be read."""
    storage = Storage(str(tmp_path), {})
    [place] = write_vectors(storage, {"a": BitMap64([1, 70_000])}).values()
    path = tmp_path / place.path
    content = bytearray(path.read_bytes())
    content[-6] ^= 1

    path.write_bytes(content)
    with pytest.raises(Halt, match="is damaged at byte 1"):
        read_vectors(storage, [place])
    path.unlink()
    with pytest.raises(Halt, match="another program's vacuum removed it"):
        read_vectors(storage, [place])
    with pytest.raises(Halt, match="outside of the table"):
        read_vectors(storage, [VectorPlace("p", "s3://other/file", 1, 40, 6)])
