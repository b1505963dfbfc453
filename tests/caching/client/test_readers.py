"""Which shard a loader reads, and what the server has to hold."""

import pytest

from caching.client.readers import Readers, requirement
from event_token.errors import UsageError
from tests.caching.client.model import Model
from tests.caching.protocol.tokens import token
from topics.keyspace.vindexes import vindex_named


def test_the_shard_of_a_value(model: Model) -> None:
    """`on=` picks the shard by the vindex, as the keyspace does; `shard=` names it."""
    readers = Readers(model.readers, "hash")

    for value in range(50):
        expected = "-80" if vindex_named("hash").keyspace_id(value) < b"\x80" else "80-"
        assert readers.shard_of(value, None) == expected
    assert readers.shard_of(None, "80-") == "80-"
    assert Readers({"-": model.readers["-80"]}, "hash").shard_of(None, None) == "-"


def test_a_shard_that_is_not_clear(model: Model) -> None:
    """Neither guessed nor read from a shard that does not have the row."""
    readers = Readers(model.readers, "numeric")

    with pytest.raises(UsageError, match="takes on="):
        readers.shard_of(None, None)
    with pytest.raises(UsageError, match="no reader of shard 40-80"):
        readers.shard_of(None, "40-80")
    with pytest.raises(UsageError, match="numeric"):
        readers.shard_of("text", None)
    with pytest.raises(UsageError, match="no reader of the shard with keyspace id"):
        Readers({"80-": model.readers["80-"]}, "numeric").shard_of(1, None)


def test_readers_that_overlap(model: Model) -> None:
    """A source and its target do not both serve; no reader at all reads nothing."""
    reader = model.readers["-80"]

    with pytest.raises(UsageError, match="-40 and -80 overlap"):
        Readers({"-80": reader, "-40": reader}, "hash")
    with pytest.raises(UsageError, match="at least one shard"):
        Readers({}, "hash")


def test_what_a_read_has_to_hold() -> None:
    """R24: a write on the shard, or on one that was split or merged; the primary has several."""
    here, source, elsewhere = token("-40", 5), token("-80", 9), token("80-", 3)

    assert requirement([], "-40", "any") == (None, "any")
    assert requirement([elsewhere], "-40", "replica") == (None, "replica")
    assert requirement([elsewhere, here], "-40", "any") == (here, "any")
    assert requirement([source], "-40", "any") == (source, "any")
    assert requirement([source, here], "-40", "any") == (here, "primary")
