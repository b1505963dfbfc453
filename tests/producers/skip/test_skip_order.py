"""Which stops an order passes. Pure."""

import pytest

from event_token import Flavor, parse_gtid_set
from event_token.named_gtids import NamedGtids
from producers.decoder.errors import (
    CorruptBinlog,
    DecoderHalt,
    HiddenType,
    RecordTooLarge,
    RuleBroken,
    StatementInRowStream,
    UnsupportedColumn,
    WriteAfterEnd,
)
from producers.skip.skip_order import SkipOrder

UNTIL = parse_gtid_set("0-1-9", Flavor.MARIADB)
BOTH = (("shop", "t"), ("shop", "aside"))


def order(*gtids: str, tables: tuple[tuple[str, str], ...] = ()) -> SkipOrder:
    """An order for GTIDs, for tables, or without either for all."""
    named = NamedGtids.parse(gtids) if gtids else None
    return SkipOrder(UNTIL, "x", lambda _: None, gtids=named, tables=frozenset(tables) or None)


@pytest.mark.parametrize(
    ("kind", "in_range", "by_gtid"),
    [
        (StatementInRowStream, True, True),
        (UnsupportedColumn, True, True),
        (RecordTooLarge, True, True),
        (CorruptBinlog, False, True),
        (RuleBroken, False, True),
        (HiddenType, False, True),
        (WriteAfterEnd, False, False),
    ],
)
def test_what_settings_or_another_attempt_can_help_is_passed_by_its_gtid_alone(
    kind: type[DecoderHalt], in_range: bool, by_gtid: bool
) -> None:
    """Rows after the END of a reshard are never passed."""
    error = kind("it stops")

    assert order().covers("0-1-5", error) is in_range
    assert order("0-1-5").covers("0-1-5", error) is by_gtid
    assert not order("0-1-5").covers("0-1-4", error)


def test_all_tables_of_a_stop_must_be_named() -> None:
    """A stop that names no table is not passed because of one."""
    exchanged = StatementInRowStream("it stops", BOTH)

    assert order(tables=BOTH).covers("0-1-5", exchanged)
    assert order(tables=(*BOTH, ("shop", "other"))).covers("0-1-5", exchanged)
    assert not order(tables=BOTH[:1]).covers("0-1-5", exchanged)
    assert not order(tables=BOTH).covers("0-1-5", StatementInRowStream("it stops"))
