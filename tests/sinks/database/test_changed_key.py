"""A primary key whose DECIMAL gets another precision or scale."""

import pytest

from sinks.rule.policy import RowPolicy
from sinks.rule.task_changes import FollowedTables
from tests.sinks.database.followed import ON_MARIADB_TOO, Followed, batch
from tests.sinks.rule.batches import Source
from tests.spark_consumers.changed_keys import FINER, FIRST, OTHERS, REFUSED, WIDER
from topics.errors import ShapeConflict


@ON_MARIADB_TOO
def test_a_wider_key_is_followed_and_one_of_another_scale_leaves_the_others_to_go_on(
    followed: Followed,
) -> None:
    """Key changed: equal keys stay equal, or the table is named and the others go on without it."""
    source, database = Source(), followed.database
    for number, events in enumerate((FIRST, WIDER)):
        database.apply_arrow(batch(number), source.changes(events, _all(followed)))

    with pytest.raises(ShapeConflict, match=REFUSED):
        source.changes(FINER, _all(followed))
    others = FollowedTables(database.known(), RowPolicy(tables=OTHERS))
    database.apply_arrow(batch(2), source.changes(FINER, others))

    assert followed.rows("SELECT id FROM shop.orders ORDER BY id") == [(1,), (2,), (3,)]
    assert followed.rows("SELECT note FROM shop.prices") == [("b",)]


def _all(followed: Followed) -> FollowedTables:
    return FollowedTables(known=followed.database.known())
