"""Batches of changes: after each one the tables hold what the rule of homes says."""

import random
import uuid
from dataclasses import replace

from event_token import EventToken, MysqlGtidSet
from sinks.rule.upserts import reduce_changes
from tests.postgres_servers import PostgresFixture
from tests.sinks.database.followed import (
    EVERYWHERE,
    ON_MARIADB_TOO,
    ON_MYSQL_TOO,
    Followed,
    Item,
    batch,
    changes,
)

KEYS = 12
BATCHES = 12
# Fewer where each batch creates and drops tables of InnoDB.
BATCHES_OF_OTHERS = 6
# By shard, an id of a row that is at home there.
HOMES = {"-80": b"\x10", "80-": b"\x90"}


@ON_MYSQL_TOO
def test_rows_follow_inserts_updates_and_deletes(followed: Followed) -> None:
    """An INSERT, an UPDATE and a DELETE, each in a batch of its own."""
    followed.apply([Item(1, 1, 100, note="a", amount=1), Item(2, 2, 100, note='q"\n\\', amount=2)])
    followed.check()
    followed.apply([Item(1, 3, 200, note="b")])
    followed.check()
    followed.apply([Item(1, 4, 300, deleted=True)])
    followed.check()

    assert followed.rows("SELECT id, note, amount, _time_us FROM shop.items") == [
        (2, 'q"\n\\', 2, 100)
    ]
    [(batch, frontier)] = followed.rows("SELECT batch, frontier_us FROM _shardstream.position")
    assert (batch, frontier) == (2, 3000)


def test_a_changed_row_stays_on_its_page(followed: Followed) -> None:
    """A table that was filled has room for changes, so that they need not update its indexes."""
    pages = "SELECT (ctid::text::point)[0], id FROM shop.items WHERE id % 50 = 0 ORDER BY id"
    followed.apply([Item(i, i + 1, 100, note="filled") for i in range(400)])
    filled = followed.rows(pages)

    followed.apply([Item(i, i + 401, 200, note="change") for i in range(0, 400, 50)])

    assert len({page for page, _ in filled}) > 1
    assert followed.rows(pages) == filled


@ON_MARIADB_TOO
def test_a_key_that_comes_to_two_shards_at_once(followed: Followed) -> None:
    """A batch whose only key has rows of two shards: nothing can be applied in bulk."""
    items = [Item(1, 1, 100, home=None, note="a"), Item(1, 1, 200, "80-", None, note="b")]
    reduced = reduce_changes("shop.items", changes(items).rows)

    staged = followed.database.stage([replace(changes([]), rows=reduced)])

    assert followed.database.apply(batch(0), staged)
    assert followed.rows("SELECT id, note FROM shop.items") == [(1, "b")]


@EVERYWHERE
def test_random_histories_end_as_the_rule_says(followed: Followed) -> None:
    """Upserts, deletes, moves between shards with skewed clocks, late and repeated changes."""
    rng = random.Random(7)
    seqs = dict.fromkeys(HOMES, 0)
    clock_us = 1_000
    is_postgres = isinstance(followed.server, PostgresFixture)
    for _ in range(BATCHES if is_postgres else BATCHES_OF_OTHERS):
        tasks: list[list[Item]] = [[], []]
        for key in rng.sample(range(KEYS), rng.randint(1, KEYS)):
            for shard in rng.sample(sorted(HOMES), rng.choice([1, 1, 1, 2])):
                clock_us += rng.randint(1, 20)
                seqs[shard] += 1
                late_us = rng.choice([0, 0, 0, 500])
                item = Item(
                    key,
                    *(seqs[shard], clock_us - late_us + 10 * (shard == "-80"), shard),
                    HOMES[shard],
                    deleted=rng.random() < 0.3,
                    note=rng.choice([None, "", "x" * 30, "ü\t,"]),
                    amount=rng.randint(-5, 5),
                    compare=late_us > 0,
                    token=_token(clock_us, shard, seqs[shard]),
                )
                tasks[key % 2].append(item)
        followed.apply(*tasks)
        followed.check()


_UUID = {shard: str(uuid.UUID(int=i + 1)) for i, shard in enumerate(HOMES)}


def _token(time_us: int, shard: str, seq: int) -> str:
    position = MysqlGtidSet.parse(f"{_UUID[shard]}:1-{seq}")
    return EventToken(time_us, shard, position).to_string()
