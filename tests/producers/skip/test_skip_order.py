"""Which stops an order passes, and which transactions it may name. Pure."""

from typing import Any

import pytest

from databases.server_facts import ServerHistory
from event_token import Flavor, MariadbGtidSet, UsageError, parse_gtid_set
from event_token.gtid_set import NamedGtids
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
from producers.servers.choice import ServerView
from producers.servers.server_list import OpenServer
from producers.settings import ServerSettings
from producers.skip.one_transaction import check_ahead, parse_gtid
from producers.skip.skip_order import SkipOrder
from tests.producers.decoder.decoding import Sink, new_decoder
from topics.names import ShardTopics

# Server 1 wrote up to 0-1-5, server 2 up to 0-2-8, and then server 1 again.
SWITCHED_BACK = "0-2-8,0-1-10"
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


def switched_back() -> OpenServer:
    """A server after a switch to another one and back; nobody is asked."""
    nothing: Any = None
    executed = MariadbGtidSet.of_server("0-1-10", SWITCHED_BACK, "")
    history = ServerHistory(executed, MariadbGtidSet())
    view = ServerView("db", False, "1", history, {(0, 1): 10, (0, 2): 8})
    return OpenServer(
        ServerSettings("db", 3306, "u", ""), ShardTopics("commerce", "-"), nothing, nothing, view
    )


@pytest.mark.parametrize(
    ("gtid", "refused"),
    [
        ("0-1-5", ""),
        ("0-2-8", ""),
        ("0-1-4", "already past"),
        ("0-1-11", "has not executed"),
        ("0-9-5", "has not executed"),
    ],
)
def test_a_transaction_from_before_a_switch_and_back_can_be_passed(gtid: str, refused: str) -> None:
    """The server's last number per writer does not tell who wrote number 5, and need not."""
    position, wanted = parse_gtid("0-1-4", Flavor.MARIADB), parse_gtid(gtid, Flavor.MARIADB)

    if not refused:
        check_ahead(switched_back(), position, wanted)
        return
    with pytest.raises(UsageError, match=refused):
        check_ahead(switched_back(), position, wanted)


@pytest.mark.parametrize(("position", "ended"), [("0-1-8", False), ("0-2-10", True)])
def test_an_order_ends_by_numbers(position: str, ended: bool) -> None:
    """A GTID that nobody wrote does not keep an order running once its number was passed."""
    decoder = new_decoder(Sink(), Flavor.MARIADB, position)

    assert order().check_end(decoder) is ended
