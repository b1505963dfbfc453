"""A table of two shards of which one is altered an hour before the other: what real servers log."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.decoding import decode
from tests.topics.records.events import UUID
from topics.records.vevent import TokenText, VEvent

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
CREATE = "CREATE TABLE items (id INT PRIMARY KEY, note VARCHAR(20), amount INT, gone INT)"
ALTER = (
    "ALTER TABLE items RENAME COLUMN note TO memo",
    "ALTER TABLE items ADD COLUMN at DATETIME(6), MODIFY amount BIGINT, DROP COLUMN gone",
)
EARLY = (
    CREATE,
    "INSERT INTO items VALUES (1, 'a', -1, 1), (3, 'b', 2, 2), (5, NULL, NULL, NULL)",
    *ALTER,
    "UPDATE items SET amount = 1 << 40, at = '2024-02-29 01:02:03.000004' WHERE id = 1",
    "INSERT INTO items VALUES (7, 'new', 7, NULL)",
    "DELETE FROM items WHERE id = 5",
    "UPDATE items SET id = 9, memo = 'key' WHERE id = 3",
)
LATE = (
    CREATE,
    "INSERT INTO items VALUES (2, 'c', -1, 1), (4, 'd', 2, 2), (6, 'e', 3, 3)",
    "UPDATE items SET note = 'still old', amount = 5 WHERE id = 2",
    "DELETE FROM items WHERE id = 6",
    "INSERT INTO items VALUES (8, 'old', 8, 8)",
    *ALTER,
    "UPDATE items SET amount = amount + (1 << 33), at = '2024-03-01' WHERE id < 5",
)
# After both, so that messages of all rows have the new columns.
TOUCH = "UPDATE items SET amount = amount + 1"
COLUMNS = "id, memo, amount, at"


class AlteredShards:
    """The events of both shards in merged order, and the rows that the servers have at the end."""

    def __init__(self, server: DatabaseFixture) -> None:
        """Run the statements in two databases; one is shard `-80`, the other `80-`."""
        self.rows: dict[int, tuple[Any, ...]] = {}
        early = self._run(server, "-80", (*EARLY, TOUCH), SECOND_US)
        late = self._run(server, "80-", (*LATE, TOUCH), HOUR_US // 4)
        self.events = sorted((*early, *late), key=lambda event: event.timestamp_us)

    def _run(
        self, server: DatabaseFixture, shard: str, statements: Sequence[str], step_us: int
    ) -> list[VEvent]:
        database = server.new_database()
        start = executed_set(server)
        run_statements(server, database, tuple(statements))
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {COLUMNS} FROM {database}.items")
            self.rows |= {row[0]: tuple(row) for row in cursor.fetchall()}
        sink, _ = decode(capture(server, start), server.flavor, start)
        found = [event for event in sink.events() if event.database == database]
        return [_of_shard(event, shard, i, i * step_us) for i, event in enumerate(found, 1)]


def _of_shard(event: VEvent, shard: str, seq: int, at_us: int) -> VEvent:
    """The event as the producer of a shard logs it."""
    return replace(
        event,
        shard=shard,
        seq=seq,
        offset=seq,
        database="shop",
        shape=None if event.shape is None else replace(event.shape, database="shop"),
        token_text=TokenText(at_us, shard, f"{UUID}:1-{seq}"),
        commit_us=at_us,
    )
