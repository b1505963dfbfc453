"""Vindexes: keyspace ids as Vitess computes them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token.errors import UsageError
from topics.keyspace.vindexes import loose_key, vindex_named
from topics.records.table_shape import Column, ValueKind
from topics.records.vevent import Value

# From the unit tests of vitessio/vitess, go/vt/vtgate/vindexes: hash_test.go (TestHashMap),
# xxhash_test.go (TestXXHashMap), numeric_test.go (TestNumericMap), binary_test.go and
# unicodeloosemd5_test.go (TestUnicodeLooseMD5Map). The last four of `hash` are from pingcap/tidb,
# util/vitess/vitess_hash_test.go.
PUBLISHED: list[tuple[str, Value, str]] = [
    ("hash", 1, "166b40b44aba4bd6"),
    ("hash", 2, "06e7ea22ce92708f"),
    ("hash", 3, "4eb190c9a2fa169c"),
    ("hash", 4, "d2fd8867d50d2dfe"),
    ("hash", 5, "70bb023c810ca87a"),
    ("hash", 6, "f098480ac4c4be71"),
    ("hash", 30375298039, "031265661e5f1133"),
    ("hash", 1123, "031b565d41bdf8ca"),
    ("hash", 116, "1e1788ff0fde093c"),
    ("hash", 2**64 - 1, "355550b2150e2451"),
    ("xxhash", "test1", "d01ab7e4d6978f0b"),
    ("xxhash", "test2", "87eb11714c0a0e89"),
    ("xxhash", "testaverylongvaluetomakesurethisworks", "81d8c38e0d850e6a"),
    ("xxhash", 1, "d46405367612b4b7"),
    ("xxhash", None, "99e9d85137db46ef"),
    ("xxhash", -1, "d8e2a6a7c8c7623d"),
    ("xxhash", 2**64 - 1, "477cfa8d6d8f1f8d"),
    ("xxhash", 2**63 - 1, "b37eb01f7bffafd8"),
    ("xxhash", -(2**63), "102c27ddb26a609e"),
    ("numeric", 1, "0000000000000001"),
    ("numeric", 8, "0000000000000008"),
    ("binary", b"test", b"test".hex()),
    ("binary", "test2", b"test2".hex()),
    ("unicode_loose_md5", "Test", "0b5edbb401fd752439369049 1d64f1f5"),
    ("unicode_loose_md5", "TEST", "0b5edbb401fd7524393690491d64f1f5"),
    ("unicode_loose_md5", "Te\u0301st", "0b5edbb401fd7524393690491d64f1f5"),
    ("unicode_loose_md5", "T\u00e9st", "0b5edbb401fd7524393690491d64f1f5"),
    ("unicode_loose_md5", "Test ", "0b5edbb401fd7524393690491d64f1f5"),
    ("unicode_loose_md5", "B\u00e9st", "c2b2332e4f73d00741026249706f2fb6"),
    ("unicode_loose_md5", " Test", "a2e3515c7e8df1ffd2ccfc11c6b19dd1"),
    ("unicode_loose_md5", "Test\t", "82456dd87a9c7a02b1c2056b5abaa272"),
    ("unicode_loose_md5", "T\u00e9stLooong", "9683e12b80430cd453f5dfdfba81c9a5"),
    ("unicode_loose_md5", "T", "ac0f9179f51db87fe8ecc0cf40cab97a"),
]
# Hexadecimal UTF-8 and the key that golang.org/x/text v0.43.0's collate.New(English, Loose) gives,
# "-" for an empty one: what Vitess hashes. Random text of many scripts.
LOOSE_KEYS = Path(__file__).with_name("loose_keys.txt")


@pytest.mark.parametrize(("vindex", "value", "expected"), PUBLISHED)
def test_published_values(vindex: str, value: Value, expected: str) -> None:
    """Keyspace ids equal those in the tests of Vitess."""
    assert vindex_named(vindex).keyspace_id(value).hex() == expected.replace(" ", "")
    assert value is not None or vindex_named(vindex).takes_null


def test_loose_keys_equal_those_of_the_library_that_vitess_uses() -> None:
    """Text of any script, with contractions and combining marks, gets the same collation key."""
    for line in LOOSE_KEYS.read_text().splitlines():
        text, key = line.split()
        assert loose_key(bytes.fromhex(text).decode()).hex() == key.replace("-", ""), text


@pytest.mark.parametrize(
    ("vindex", "value"),
    [
        ("hash", None),
        ("hash", "1"),
        ("hash", -(2**63) - 1),
        ("hash", 2**64),
        ("numeric", -1),
        ("numeric", None),
        ("numeric", 1.5),
        ("binary", None),
        ("binary", 1),
        ("unicode_loose_md5", None),
        ("unicode_loose_md5", b"\x99\xeb"),
        ("unicode_loose_md5", "e\u0302\u0f71\u0323\u0f72"),
    ],
)
def test_values_without_a_keyspace_id_are_refused(vindex: str, value: Value) -> None:
    """A value without a keyspace id in Vitess, or which it would normalise, is one clear error."""
    with pytest.raises(UsageError, match=f"vindex {vindex} cannot take"):
        vindex_named(vindex).keyspace_id(value)
    assert value is not None or not vindex_named(vindex).takes_null


def test_unknown_vindexes_and_columns_of_the_wrong_type_are_named() -> None:
    """The error lists the known vindexes, and the column types that one takes."""
    with pytest.raises(UsageError, match="binary, hash, numeric, unicode_loose_md5, xxhash"):
        vindex_named("md5")
    with pytest.raises(UsageError, match="column at of type date: it takes columns of kind int"):
        vindex_named("hash").check_column(Column("at", ValueKind.DATE, "date"))
    vindex_named("hash").check_column(Column("id", ValueKind.LONG, "bigint"))


@given(st.integers(-(2**63), 2**64 - 1), st.integers(-(2**63), 2**64 - 1))
def test_hash_tells_all_numbers_apart(one: int, other: int) -> None:
    """Vitess's hash is invertible, so two 64-bit patterns never share a keyspace id."""
    vindex = vindex_named("hash")

    same_bits = one % 2**64 == other % 2**64
    assert (vindex.keyspace_id(one) == vindex.keyspace_id(other)) == same_bits
