"""Triggers and rules that people put on the tables of a target."""

import pytest

from sinks.errors import DatabaseRefuses
from sinks.rule.homes import Version
from tests.sinks.database.followed import Followed, Item

ROW = [Item(1, 1, 100, note="a", amount=7)]
AT_100 = Version("-80", 9, 900, None, None)


def skip(followed: Followed, event: str, answer: str = "NULL") -> None:
    """Let a trigger answer so."""
    followed.rows(
        f"CREATE FUNCTION shop.skip() RETURNS trigger LANGUAGE plpgsql "
        f"AS $$ BEGIN RETURN {answer}; END $$"
    )
    followed.rows(
        f"CREATE TRIGGER skip BEFORE {event} ON shop.items "
        f"FOR EACH ROW EXECUTE FUNCTION shop.skip()"
    )


@pytest.mark.parametrize(
    ("event", "answer", "item"),
    [
        ("INSERT", "NULL", Item(2, 2, 200, note="b")),
        ("UPDATE", "NULL", Item(1, 2, 200, note="b")),
        ("UPDATE", "OLD", Item(1, 2, 200, note="b")),
        ("UPDATE", "NULL", Item(1, 2, 200, note="b", absent=("amount",))),
        ("DELETE", "NULL", Item(1, 2, 200, deleted=True)),
        ("DELETE", "NULL", Item(1, 2, 200, deleted=True, compare=True)),
        ("INSERT", "NULL", Item(2, 2, 200, note="b", compare=True)),
    ],
)
def test_a_row_that_a_trigger_skips_stops_the_batch(
    followed: Followed, event: str, answer: str, item: Item
) -> None:
    """The database reports no error; nothing is applied until the trigger lets the row through."""
    followed.apply(ROW)
    skip(followed, event, answer)

    with pytest.raises(DatabaseRefuses, match=r"shop\.items did not take .* return NEW"):
        followed.apply([item])

    followed.rows("DROP TRIGGER skip ON shop.items")
    followed.number -= 1
    followed.apply([item])
    followed.check() if item.absent is None else None


def test_a_rule_that_keeps_rows_of_a_truncate_stops_the_batch(followed: Followed) -> None:
    """TRUNCATE on a shard, and a rule that deletes nothing."""
    followed.apply(ROW)
    followed.rows("CREATE RULE keep AS ON DELETE TO shop.items DO INSTEAD NOTHING")

    with pytest.raises(DatabaseRefuses, match="did not take the change of some rows"):
        followed.apply([], removals=[AT_100])


def test_a_trigger_that_lets_rows_through_is_welcome(followed: Followed) -> None:
    """A column of one's own may be kept up to date by a trigger."""
    followed.apply(ROW)
    followed.rows("ALTER TABLE shop.items ADD COLUMN mine integer")
    followed.rows(
        "CREATE FUNCTION shop.fill() RETURNS trigger LANGUAGE plpgsql "
        "AS $$ BEGIN NEW.mine := NEW.amount + 1; RETURN NEW; END $$"
    )
    followed.rows(
        "CREATE TRIGGER fill BEFORE INSERT OR UPDATE ON shop.items "
        "FOR EACH ROW EXECUTE FUNCTION shop.fill()"
    )

    followed.apply([Item(1, 2, 200, amount=1), Item(2, 3, 200, amount=2)])

    followed.check()
    assert followed.rows("SELECT id, mine FROM shop.items ORDER BY id") == [(1, 2), (2, 3)]
