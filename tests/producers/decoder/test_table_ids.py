"""The numbers by which row events name their tables."""

from event_token import Flavor
from producers.decoder.events.event_types import TABLE_MAP, WRITE_ROWS, WRITE_ROWS_V1
from producers.decoder.stream.table_versions import PLANS_MAX
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, packets_of, run_statements
from tests.producers.decoder.decoding import decode

# Of a packet: its header, an OK byte, then the event's header of 19 bytes.
TYPE_AT = 4 + 1 + 4
BODY_AT = 4 + 1 + 19


def test_no_table_id_is_a_stand_in(database: DatabaseFixture) -> None:
    """Rows of the table that happens to have the id 0xFFFFFF are rows like any other's."""
    before = executed_set(database)
    statements = ["CREATE TABLE t(id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)"]
    if database.flavor is Flavor.MYSQL:
        insert = "INSERT INTO t VALUES (3)"
        statements += ["XA START 'x'", insert, "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'"]
    run_statements(database, database.new_database(), tuple(statements))
    stream = capture(database, before)
    renumbered = b"".join(map(_with_largest_id, packets_of(stream)))

    plain, _ = decode(stream, database.flavor, before)
    sink, _ = decode(renumbered, database.flavor, before, verify_checksum=False)

    rows = [e for e in sink.events() if e.table == "t"]
    assert len(rows) == (3 if database.flavor is Flavor.MYSQL else 2)
    assert [m.value for m in sink.messages] == [m.value for m in plain.messages]


def test_more_table_ids_than_are_kept(database: DatabaseFixture) -> None:
    """B7: however many tables a binlog file has named before, a statement's own ones are known."""
    name = database.new_database()
    tables = ("CREATE TABLE a(id INT)", "CREATE TABLE b(id INT)")
    rows = ("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)")
    run_statements(database, name, (*tables, *rows))
    before = executed_set(database)
    run_statements(database, name, ("UPDATE a, b SET a.id = 2, b.id = 3",))
    packets = packets_of(capture(database, before))
    first = next(i for i, packet in enumerate(packets) if packet[TYPE_AT] == TABLE_MAP)
    for kept in (PLANS_MAX - 1, PLANS_MAX, PLANS_MAX + 1):
        others = [_with_id(packets[first], 1_000_000 + i) for i in range(kept)]
        stream = b"".join([*packets[:first], *others, *packets[first:]])

        sink, _ = decode(stream, database.flavor, before, verify_checksum=False)

        assert [(e.table, e.after) for e in sink.events()] == [("a", {"id": 2}), ("b", {"id": 3})]


def _with_id(packet: bytes, table_id: int) -> bytes:
    """A packet with a table map event of that id."""
    return packet[:BODY_AT] + table_id.to_bytes(6, "little") + packet[BODY_AT + 6 :]


def _with_largest_id(packet: bytes) -> bytes:
    """A packet whose event, if it is of a table, has the table id 0xFFFFFF."""
    kind = packet[TYPE_AT]
    if kind not in {TABLE_MAP, WRITE_ROWS_V1, WRITE_ROWS}:
        return packet
    return _with_id(packet, 0xFFFFFF)
