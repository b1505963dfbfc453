"""Which statements change values of rows without logging them, and what a sink does then."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sinks.rule.columns import KnownTable
from sinks.rule.policy import RowPolicy
from sinks.rule.statements import TableName, Unlogged, altered_table
from sinks.rule.task_changes import FollowedTables
from tests.sinks.rule.batches import ORDERS, Source, change, statement
from topics.errors import CannotApply
from topics.records.vevent import Row

NAME = ("shop", "orders")
KNOWN = {NAME: KnownTable(ORDERS)}
SWAP = "RENAME TABLE orders TO _orders_old, _orders_new TO orders"
DEFAULT = "ALTER TABLE orders ADD COLUMN extra INT NOT NULL DEFAULT 7"
ROW: Row = {"id": 1, "value": 1}


@pytest.mark.parametrize(
    "clauses",
    [
        "ADD COLUMN c INT DEFAULT 7",
        "ADD c INT NOT NULL",
        "ADD COLUMN IF NOT EXISTS c VARCHAR(3) DEFAULT 'NULL'",
        "ADD COLUMN a INT, ADD COLUMN b INT NOT NULL",
        "ADD COLUMN (a INT, b DECIMAL(4,1) DEFAULT 1.5)",
        "ADD COLUMN c CHAR(36) DEFAULT (UUID())",
        "ADD COLUMN c TIMESTAMP",
        "ADD COLUMN c TIMESTAMP DEFAULT CURRENT_TIMESTAMP",
        "ADD COLUMN c INT AS (id + 1)",
        "ADD COLUMN c INT GENERATED ALWAYS AS (id + 1) STORED",
        "ADD COLUMN c BIGINT AUTO_INCREMENT UNIQUE",
        "ADD COLUMN c SERIAL",
        "ADD SYSTEM VERSIONING",
        "MODIFY amount DATETIME(0)",
        "CHANGE COLUMN note memo VARCHAR(3)",
        "CONVERT TO CHARACTER SET utf8mb4",
        "DROP COLUMN c, ADD COLUMN C INT",
        "COMMENT = 'x' ENGINE=BLACKHOLE",
        "ENGINE = MEMORY",
        "WAIT 5 MODIFY c INT",
        "SOMETHING NEW",
        # With sql_mode NO_BACKSLASH_ESCAPES the first comment ends at its second quote.
        r"ADD COLUMN a INT COMMENT 'x\', ADD COLUMN b INT DEFAULT 5 COMMENT 'y'",
    ],
)
def test_statements_that_change_values(clauses: str) -> None:
    """Existing rows get a value that is in no event; what is not known is taken for that."""
    assert altered_table(f"ALTER TABLE `orders` {clauses}", "shop") == TableName(*NAME)


@pytest.mark.parametrize(
    "clauses",
    [
        "",
        "ADD COLUMN c INT",
        "ADD c INT NULL DEFAULT NULL COMMENT 'NOT NULL DEFAULT 7' AFTER `default`",
        "ADD COLUMN c ENUM('not','null') CHARACTER SET latin1 FIRST, ALGORITHM=INSTANT",
        "ADD COLUMN (a INT CHECK (a > 0 AND a IS NOT NULL), b TIMESTAMP(6) NULL, KEY (a))",
        "ADD COLUMN c INT UNIQUE KEY",
        r"ADD COLUMN c INT COMMENT 'it\'s', ADD COLUMN d INT",
        "ADD INDEX i (a), ADD UNIQUE u (b), ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES b(a)",
        "ADD VECTOR INDEX v (embedding)",
        "ADD PARTITION (PARTITION p1 VALUES LESS THAN (9))",
        "DROP COLUMN gone, DROP KEY i, DROP FOREIGN KEY f, DROP PRIMARY KEY",
        "RENAME COLUMN a TO b, RENAME INDEX i TO j",
        "ALTER COLUMN a SET DEFAULT 7, ALTER INDEX i INVISIBLE",
        "ENGINE=InnoDB, ROW_FORMAT=DYNAMIC COMMENT='ENGINE=MEMORY'",
        "NOWAIT FORCE, LOCK=NONE",
        "REORGANIZE PARTITION p0 INTO (PARTITION n0 VALUES LESS THAN (5))",
        "DEFAULT CHARACTER SET utf8mb4",
    ],
)
def test_statements_that_keep_values(clauses: str) -> None:
    """New columns that are NULL, indexes, and what concerns the table's storage."""
    assert altered_table(f"ALTER TABLE shop.orders {clauses}", "hr") is None


def asked(events: Sequence[object], following: FollowedTables) -> list[tuple[str, int]]:
    """The shards and records behind which a sink has the table copied, of a batch."""
    found: list[Unlogged] = []
    Source().changes(events, replace(following, on_unlogged=found.extend))  # type: ignore[arg-type]
    assert {each.what for each in found} <= {TableName(*NAME)}
    return [(each.at.shard, each.at.seq) for each in found]


@pytest.mark.parametrize("text", [SWAP, DEFAULT])
def test_each_shard_is_copied_behind_its_own_statement(text: str) -> None:
    """Shards are altered one after the other; of several statements the last one counts."""
    batch = [
        statement("-80", 2, 100, text),
        statement("-80", 4, 200, text),
        statement("80-", 9, 300, text),
    ]

    assert asked(batch, FollowedTables(known=KNOWN)) == [("-80", 4), ("80-", 9)]


def test_no_copy_where_nothing_can_be_old() -> None:
    """A table without rows so far, one that is not followed, and one that is emptied afterwards."""
    later = [statement("-80", 3, 100, DEFAULT), change("-80", 4, 200, None, ROW)]
    earlier = [change("-80", 2, 50, None, ROW), *later]

    assert asked(later, FollowedTables()) == []
    assert asked(earlier, FollowedTables()) == [("-80", 3)]
    assert asked(earlier, FollowedTables(policy=RowPolicy(tables=("shop.items",)))) == []
    assert asked([*later, statement("-80", 5, 300, "DROP TABLE orders")], FollowedTables()) == []
    other = statement("80-", 5, 300, "DROP TABLE orders")
    assert asked([*earlier, other], FollowedTables()) == [("-80", 3)]


def test_a_swap_brings_rows_to_a_table_without_any() -> None:
    """Half a swap may be all that the log has of a table."""
    assert asked([statement("-80", 3, 100, SWAP)], FollowedTables()) == [("-80", 3)]


def test_a_statement_is_accepted_by_its_gtid() -> None:
    """An operator who knows that it changed no value need not copy the table."""
    event = statement("-80", 3, 100, "ALTER TABLE orders MODIFY value BIGINT UNSIGNED")

    assert asked([event], FollowedTables(known=KNOWN)) == [("-80", 3)]
    assert asked([event], FollowedTables(KNOWN, RowPolicy(accept_skip=(event.gtid,)))) == []


@pytest.mark.parametrize("text", [SWAP, DEFAULT, DEFAULT.replace(" ", "\n\t")])
def test_without_copies_it_stops_by_name(text: str) -> None:
    """A program that has no tables copied does not go on with old values: one line says so."""
    with pytest.raises(CannotApply, match=r"^shop.orders, shard -80, seq 3 \(GTID .*accept_skip"):
        Source().changes([statement("-80", 3, 100, text)], FollowedTables(known=KNOWN))


def test_half_a_swap_empties_the_table() -> None:
    """gh-ost's two-step cut-over: rows go with the first rename, others come with the second."""
    away = statement("-80", 3, 100, "RENAME TABLE orders TO _orders_del")
    back = statement("-80", 5, 200, "RENAME TABLE _orders_gho TO orders")

    [changes] = Source().changes([away], FollowedTables(known=KNOWN))
    assert [at.seq for at in changes.removals] == [3]
    assert asked([away, back], FollowedTables(known=KNOWN)) == [("-80", 5)]


def test_a_shadow_table_that_is_followed_stops_at_the_swap() -> None:
    """Its rows are those of the other table then, and that is in no event of its own."""
    name = ("shop", "_orders_old")
    shape = replace(ORDERS, table=name[1])
    following = FollowedTables({name: KnownTable(shape)}, RowPolicy(tables=(".".join(name),)))

    with pytest.raises(CannotApply, match=r"shop\._orders_old, shard -80, seq 3"):
        Source().changes([statement("-80", 3, 100, SWAP)], following)
