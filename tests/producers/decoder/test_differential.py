"""Random tables, random values, random ALTERs: the log against a SELECT and mysql-replication."""

import random
from itertools import islice
from typing import Any

import pytest

from event_token import Flavor
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set
from tests.producers.decoder.decoding import decode
from tests.producers.decoder.other_decoder import binlog_end, images_by_mysql_replication
from tests.producers.decoder.random_changes import ROWS, change_at_random, check_random_table
from tests.producers.decoder.random_tables import RandomTable

SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_log_adds_up_to_what_a_select_shows(database: DatabaseFixture, seed: int) -> None:
    """F17: All types, altered on the way: images before agree, and so does the end."""
    check_random_table(database, seed)


@pytest.mark.parametrize("seed", range(3))
def test_mysql_replication_reads_the_same(mysql_a: DatabaseFixture, seed: int) -> None:
    """Of types that it decodes, every image of every change is the same.

    But for empty bytes, which it takes for empty text.
    """
    table = RandomTable(random.Random(1000 + seed), Flavor.MYSQL, mysql_a.version, plain=True)
    name = mysql_a.new_database()
    before = executed_set(mysql_a)
    file, position = binlog_end(mysql_a)
    change_at_random(mysql_a, name, table, alters=False)
    sink, _ = decode(capture(mysql_a, before), Flavor.MYSQL, before)
    mine = [(e.before, e.after) for e in sink.events() if e.shape is not None]
    second = list(islice(images_by_mysql_replication(mysql_a, name, file, position), len(mine)))

    assert len(mine) > ROWS
    assert [tuple(map(with_empty_text, pair)) for pair in second] == [
        tuple(map(with_empty_text, pair)) for pair in mine
    ]


def with_empty_text(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """The row with empty bytes as empty text."""
    return row and {name: "" if value == b"" else value for name, value in row.items()}
