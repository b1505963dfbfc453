import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_consumers.table_topics.envelope.partition import murmur2, partition_of, partitions_of

# The vectors of Kafka's own test of Utils.murmur2.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_hashes_equal_javas() -> None:
    """murmur2 gives the numbers of Kafka's Java client."""
    found = {key: murmur2(key) for key in VECTORS}

    assert {key: number & 0xFFFFFFFF for key, number in VECTORS.items()} == found


def test_partition_is_the_positive_hash_modulo_partitions() -> None:
    """A negative hash loses its sign bit, as in Java's DefaultPartitioner."""
    assert partition_of(b"21", 12) == (-973932308 & 0x7FFFFFFF) % 12


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(1, 200), st.integers(0, 5))
def test_columns_of_keys_get_the_partitions_of_their_keys(
    keys: list[bytes], partitions: int, skipped: int
) -> None:
    """Keys hashed together have the partitions that they have alone, also in a slice."""
    column = pa.array(keys, pa.binary()).slice(skipped)

    found = partitions_of(column, partitions).tolist()

    assert [partition_of(key, partitions) for key in keys[skipped:]] == found
