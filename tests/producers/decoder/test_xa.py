"""XA transactions of MySQL: put aside at PREPARE, logged at COMMIT, through restarts."""

import pytest

from event_token import Flavor, MysqlGtidSet
from producers.decoder import UnsupportedEvent
from producers.decoder.stream import prepared
from producers.decoder.tables.column_types import YEAR_HAS_SIGN
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.decoding import ALL_ROWS, Sink, decode, new_decoder

PREPARE = ("XA START '{0}'", "INSERT INTO t VALUES ({0})", "XA END '{0}'", "XA PREPARE '{0}'")


def prepare(number: int) -> list[str]:
    """The statements of an XA transaction up to PREPARE."""
    return [statement.format(number) for statement in PREPARE]


@pytest.fixture
def table(mysql_a: DatabaseFixture) -> tuple[DatabaseFixture, str, str]:
    """A server with an empty table: the server, the schema, and its position."""
    name = mysql_a.new_database()
    run_statements(mysql_a, name, ("CREATE TABLE t(id INT PRIMARY KEY)",))
    return mysql_a, name, executed_set(mysql_a)


def test_restart_between_prepare_and_commit(table: tuple[DatabaseFixture, str, str]) -> None:
    """A decoder that begins where the first one stood gets the prepared rows again, once."""
    server, name, before = table
    run_statements(server, name, (*prepare(1), "INSERT INTO t VALUES (5)"))
    stream = capture(server, before)
    first = Sink()
    decoder = new_decoder(first, Flavor.MYSQL, before)
    decoder.feed(stream, 0, len(stream), ALL_ROWS)
    everything = executed_set(server)
    assert decoder.reached(everything)
    batch = decoder.take_batch()
    position = batch.position
    [prepared_us] = batch.prepared_us
    assert 0 < prepared_us <= batch.last_commit_us
    missing = MysqlGtidSet.parse(everything).subtract(MysqlGtidSet.parse(position))
    run_statements(server, name, ("XA COMMIT '1'", "INSERT INTO t VALUES (6)"))
    second, summary = decode(capture(server, position), Flavor.MYSQL, position)

    assert [e.after for e in first.events()] == [{"id": 5}]
    assert len(str(missing).split(":")) == 2
    assert str(missing).rpartition(":")[2].isdigit()
    assert [e.after for e in second.events()] == [{"id": 1}, {"id": 6}]
    assert summary.prepared_us == []
    assert summary.position == executed_set(server)
    assert str(missing) not in first.events()[0].token.to_string()


def test_several_at_once_in_another_order(table: tuple[DatabaseFixture, str, str]) -> None:
    """Each is logged by its own COMMIT, with that one's GTID; one that is rolled back is not."""
    server, name, before = table
    for number in (1, 2, 3):
        run_statements(server, name, tuple(prepare(number)))
    run_statements(server, name, ("XA COMMIT '3'", "XA ROLLBACK '2'", "XA COMMIT '1'"))
    sink, summary = decode(capture(server, before), Flavor.MYSQL, before)
    events = sink.events()

    assert [e.after for e in events] == [{"id": 3}, {"id": 1}]
    assert [(e.row_index, e.last) for e in events] == [(0, True), (0, True)]
    last = MysqlGtidSet.parse(executed_set(server))
    assert summary.position == str(last)
    # The position of each includes what it changed and leaves out what was still prepared then.
    assert [last.includes(e.token.position) for e in events] == [True, True]
    assert events[1].token.position == last


def test_rows_beyond_memory_lie_in_a_file() -> None:
    """What passes the limit of memory comes back from a file, in order."""
    spools = prepared.PreparedTransactions(memory_bytes_max=300)
    spool = prepared.EventSpool(spools, YEAR_HAS_SIGN)
    events = [bytes([i]) * 100 for i in range(10)]
    for event in events:
        spool.add(event)

    assert spools.memory_bytes == 300
    assert list(spool.events()) == events
    assert spools.memory_bytes == 0


def test_commit_of_what_was_prepared_before_the_start(
    table: tuple[DatabaseFixture, str, str],
) -> None:
    """Its rows are not in reach: COMMIT stops the shard by name, ROLLBACK is nothing to it."""
    server, name, _ = table
    run_statements(server, name, (*prepare(1),))
    start = executed_set(server)
    run_statements(server, name, ("XA COMMIT '1'",))

    with pytest.raises(UnsupportedEvent, match=r"X'31',X'',1, whose PREPARE and rows are before"):
        decode(capture(server, start), Flavor.MYSQL, start)

    run_statements(server, name, tuple(prepare(2)))
    start = executed_set(server)
    run_statements(server, name, ("XA ROLLBACK '2'", "INSERT INTO t VALUES (7)"))
    sink, _ = decode(capture(server, start), Flavor.MYSQL, start)
    assert [e.after for e in sink.events()] == [{"id": 7}]


def test_too_many_prepared_at_once_stop_by_name() -> None:
    """Nothing grows without a bound."""
    spools = prepared.PreparedTransactions()
    for i in range(prepared.PREPARED_MAX):
        spools.put(
            f"X'{i}'", prepared.Prepared("u:1", prepared.EventSpool(spools, YEAR_HAS_SIGN), 7)
        )

    with pytest.raises(UnsupportedEvent, match="XA RECOVER"):
        spools.put("X'ff'", prepared.Prepared("u:1", prepared.EventSpool(spools, YEAR_HAS_SIGN), 7))


def test_any_format_id(table: tuple[DatabaseFixture, str, str]) -> None:
    """B6: a format id of 2**31 and more, which transaction managers use, is a number like any."""
    server, name, before = table
    for number, format_id in enumerate((1, 2**31 - 1, 2**31, 2**32 - 1)):
        xid = f"'far','b',{format_id}"
        run_statements(
            server,
            name,
            (
                f"XA START {xid}",
                f"INSERT INTO t VALUES ({number})",
                f"XA END {xid}",
                f"XA PREPARE {xid}",
                f"XA COMMIT {xid}",
            ),
        )
    one_phase = f"'near','b',{2**32 - 2}"
    run_statements(
        server,
        name,
        (
            f"XA START {one_phase}",
            "INSERT INTO t VALUES (4)",
            f"XA END {one_phase}",
            f"XA COMMIT {one_phase} ONE PHASE",
        ),
    )

    sink, summary = decode(capture(server, before), Flavor.MYSQL, before)

    assert [e.after for e in sink.events()] == [{"id": number} for number in range(5)]
    assert summary.position == executed_set(server)
