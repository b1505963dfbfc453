"""Which shard a loader reads, and what the server has to hold."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest

from caching.client.reads import Readers, reads_of, writes_of
from caching.errors import CacheFindings
from caching.reading.fresh_reader import FreshReader
from caching.reading.own_writes import ReadYourWrites
from caching.reading.reader import FreshRows, Reader, ServerRole
from event_token import EventToken
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


def test_fresh_readers_are_readers() -> None:
    """A FreshReader of each shard is what a cache takes."""
    reader: Reader = FreshReader("shop", "-", [lambda: None], flavor="mysql")

    assert Readers({"-": reader}, "hash").shard_of(None, None) == "-"


def test_every_form_of_own_writes() -> None:
    """R24: a token, several, or a session; none for none."""
    first, second = token("-80", 5), token("80-", 3)

    assert writes_of(None) == writes_of([]) == writes_of(ReadYourWrites()) == ()
    assert writes_of(first) == (first,)
    assert writes_of([first, second]) == writes_of(ReadYourWrites([second, first]))


class OneShard:
    """Stands in for a KeyspaceReader whose shard is the one of a model."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.asked: list[tuple[Any, str | None]] = []

    def execute(
        self,
        sql: str,
        args: Sequence[Any] = (),
        *,
        on: Any,
        table: str | None = None,
        at_least: Iterable[EventToken] | None = None,
        server: ServerRole = "any",
        prefer: Mapping[str, str] = MappingProxyType({}),
    ) -> FreshRows:
        self.asked.append((on, table))
        return self.reader.execute(
            sql, args, at_least=at_least, server=server, prefer=prefer.get("-80")
        )

    def check(self) -> CacheFindings:
        return CacheFindings(warnings=["asked"])


def test_a_reader_of_the_keyspace_picks_the_shard(model: Model) -> None:
    """It is given the value and the table, and has its own vindexes; `shard=` is refused."""
    reader = OneShard(model.readers["-80"])
    reads = reads_of(reader, None)
    rest: dict[str, Any] = {"at_least": None, "server": "any", "prefer": {"-80": "replica"}}

    reads.execute("r20", (), 7, shard=None, table="shop.t", **rest)
    assert reader.asked == [(7, "shop.t")]
    assert model.readers["-80"].preferred == ["replica"]
    assert reads.check().warnings == ["asked"]
    with pytest.raises(UsageError, match="shard=-80: a KeyspaceReader picks"):
        reads.execute("r20", (), None, shard="-80", table=None, **rest)
    with pytest.raises(UsageError, match="vindex=hash: a KeyspaceReader has the vindexes"):
        reads_of(reader, "hash")
    with pytest.raises(UsageError, match="table= is for a cache with a KeyspaceReader"):
        reads_of(model.readers, None).execute("r20", (), 7, shard=None, table="shop.t", **rest)
