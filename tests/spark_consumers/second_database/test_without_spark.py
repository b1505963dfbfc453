"""A second database that a `Subscriber` keeps up to date, without Spark."""

from contextlib import closing

from spark_consumers.applying.task_changes import Following
from spark_consumers.sink_query.subscriber_batches import Batches
from tests.spark_consumers.second_database.followed import Followed
from tests.spark_consumers.shop import SHARDS, Change, Shop
from tests.topics.shard_writer import CELL_US
from topics.records.vevent import Row
from topics.stream.subscriber import StreamSubscriber

QUERY = "without Spark"


def follow(shop: Shop, followed: Followed, changes: int) -> None:
    """Apply as many changes as were written, from where the database ends."""
    database = followed.database
    held = database.held()
    start = "earliest" if held is None else held.position
    number = 0 if held is None else held.batch_id + 1
    with closing(StreamSubscriber(shop.keyspace, "-", start, config=shop.config)) as reader:
        for batch in Batches(reader, rows=3, ms=200):
            following = Following(known=database.known())
            assert database.apply_arrow(batch.planned(QUERY, number), batch.changes(following))
            number += 1
            changes -= batch.rows.num_rows
            if changes == 0:
                return


def write(shop: Shop, *images: tuple[Row | None, Row | None]) -> None:
    """Write changes from one image to another, alternately to the one shard and the other."""
    for i, (before, after) in enumerate(images):
        home = (b"\x10", b"\x90")[i % 2]
        ids = (home if before else None, home if after else None)
        change = Change(shop.now_us, before, after, ids=ids)
        shop.writers[SHARDS[i % 2]].write([change])
        shop.now_us += CELL_US
    for writer in shop.writers.values():
        writer.promise(shop.now_us)


def order(number: int, note: str) -> Row:
    return {"id": number, "note": note, "price": None}


def test_a_subscriber_keeps_a_database_up_to_date(shop: Shop, followed: Followed) -> None:
    """F30: the rows are those of the shards, also after a restart from the database's position."""
    write(shop, *((None, order(number, "new")) for number in range(5)))
    follow(shop, followed, 5)
    write(shop, (order(0, "new"), order(0, "changed")), (order(1, "new"), None))

    follow(shop, followed, 2)

    assert sorted(followed.rows("SELECT id, note FROM shop.orders")) == [
        (0, "changed"),
        (2, "new"),
        (3, "new"),
        (4, "new"),
    ]
