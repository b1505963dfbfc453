"""A table that is altered at its source while it is compared with a second database."""

from collections.abc import Sequence
from contextlib import closing
from typing import cast

import pyarrow as pa
import pytest

from databases.errors import TableChanged
from databases.table_cursor import TableCursor
from event_token.errors import Retry
from shardstream.commands.sinks import verify as verify_command
from shardstream.commands.sinks.verify import ShardReader
from sinks.database.compared_table import Key, Name, ShardPart, ShardSnapshot
from sinks.database.verification import BEGINNINGS_MAX, VerifyTarget, verify_database
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import statements
from tests.producers.session.producing import settings_alone
from tests.sinks.database.followed import Followed, Item
from topics.arrow.decoders import TableDecoder
from topics.records.table_shape import SchemaIds

NO_ROWS = pa.schema(
    {
        **dict.fromkeys(("type", "op", "shard"), pa.string()),
        **dict.fromkeys(("seq", "timestamp_us", "schema_id"), pa.int64()),
        "record": pa.binary(),
        **dict.fromkeys(("key_hash", "old_key_hash"), pa.int64()),
        **dict.fromkeys(("late", "possible_duplicate"), pa.bool_()),
    }
).empty_table()


class AlteredSource:
    """A shard without rows, whose table is altered behind its first part, that often."""

    shard = "-80"
    decoder = TableDecoder(lambda _: "")

    def __init__(self, alters: int) -> None:
        self.alters = alters
        self.parts = 0

    def estimated_rows(self, _table: Name) -> int:
        """The server's estimate."""
        return 1

    def part(self, _table: Name, after: TableCursor | None) -> ShardPart:
        """Two parts, unless the table is altered between them."""
        self.parts += 1
        if after is not None and self.alters:
            self.alters -= 1
            raise TableChanged("table shop.items was replaced or rebuilt")
        return ShardPart(NO_ROWS, TableCursor(("1",), "") if after is None else None)

    def rows_of(self, _table: Name, keys: Sequence[Key]) -> ShardSnapshot:
        """Nothing is looked at again."""
        raise AssertionError(keys)

    def logged_seq(self, *_: object) -> int:
        """Nothing is waited for."""
        raise AssertionError


@pytest.mark.parametrize("alters", [0, 1, BEGINNINGS_MAX - 1])
def test_an_altered_table_is_compared_from_its_beginning(followed: Followed, alters: int) -> None:
    """What was compared before counts no more, and all parts are read again."""
    source = AlteredSource(alters)
    followed.apply([Item(1, 1, 100), Item(1, 2, 200, deleted=True)])

    [found] = verify_database(VerifyTarget(followed.url, followed.options.follower), [source])

    assert (found.rows, found.differing, source.parts) == (0, 0, 2 * alters + 2)


def test_a_table_that_is_altered_all_the_time_is_named(followed: Followed) -> None:
    """It could not be compared, so nothing says that no row differs."""
    followed.apply([Item(1, 1, 100), Item(1, 2, 200, deleted=True)])
    target = VerifyTarget(followed.url, followed.options.follower)

    with pytest.raises(Retry, match=r"replaced or rebuilt; that happened 5 times"):
        list(verify_database(target, [AlteredSource(BEGINNINGS_MAX)]))


@pytest.mark.parametrize("family", ["mysql_a", "mariadb_a"])
def test_a_part_is_not_read_behind_an_altered_key(
    request: pytest.FixtureRequest, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows before and behind a key are others once the key runs in the other direction."""
    server: DatabaseFixture = request.getfixturevalue(family)
    name = server.new_database()
    statements(
        server,
        f"CREATE TABLE {name}.t (id INT PRIMARY KEY)",
        f"INSERT INTO {name}.t VALUES (1), (2), (3), (4), (5)",
    )
    monkeypatch.setattr(verify_command, "PART_ROWS", 2)
    with closing(ShardReader(settings_alone(server), cast("SchemaIds", None))) as reader:
        first = reader.part((name, "t"), None)
        second = reader.part((name, "t"), first.upto)
        statements(server, f"ALTER TABLE {name}.t DROP PRIMARY KEY, ADD PRIMARY KEY (id DESC)")
        with pytest.raises(TableChanged, match="another definition"):
            reader.part((name, "t"), second.upto)
        again = reader.part((name, "t"), None)

    assert [part.rows.num_rows for part in (first, second, again)] == [2, 2, 2]
