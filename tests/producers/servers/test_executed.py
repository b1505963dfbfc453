"""What a server says that it has executed, can still show, and cannot tell, each on one server."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from databases.sql import rows
from event_token import Flavor, GtidSet, MariadbGtidSet, parse_gtid_set
from event_token.errors import ShardstreamError
from producers.errors import BinlogPurged, HistoryRewritten, NumbersRanBackwards
from producers.replication.gtid_scan import transactions
from producers.servers.choice import find_faults
from producers.servers.server_list import OpenServer, open_server
from producers.start.last_transaction import check_lasts
from shardstream.commands.sinks.verify import consistent_snapshot
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.servers.backups import write_domain
from tests.producers.servers.replication import executed, statements
from tests.producers.session.producing import server_of, settings_alone
from topics.progress.record import LastTransaction

PRIMARY = 41


@contextmanager
def looked_at(database: DatabaseFixture) -> Iterator[OpenServer]:
    """The server, and what it reports."""
    with closing(open_server(server_of(database), settings_alone(database))) as server:
        server.look(is_replica=server.is_replica())
        yield server


def fault(server: OpenServer, position: GtidSet) -> ShardstreamError | None:
    """Why a log at this position cannot go on with the server."""
    assert server.view is not None
    return find_faults(server.topics, position, [server.view]).get(server.name)


def at(text: str) -> GtidSet:
    """A position of MariaDB."""
    return parse_gtid_set(text, Flavor.MARIADB)


def read_since(server: OpenServer, position: str = "") -> tuple[LastTransaction, ...]:
    """All transactions behind a position, as a log that has read them knows them."""
    assert server.view is not None
    begin = parse_gtid_set(position, server.family.flavor)
    with closing(server.open_rest(begin)) as stream:
        return tuple(
            LastTransaction(
                str(each), each.commit_us, server.view.own, each.binlog_file, each.binlog_pos
            )
            for each in transactions(stream, server.family.flavor, server.name)
        )


def test_what_came_with_a_backup_is_executed_and_in_no_binlog(start_mariadb: StartServer) -> None:
    """F44: A log that lacks it cannot go on there, one that has it can, from right behind it."""
    database = start_mariadb()
    backup = f"0-{PRIMARY}-6,5-{PRIMARY}-1"
    statements(database, f"SET GLOBAL gtid_slave_pos = '{backup}'")
    with looked_at(database) as server:
        assert server.history().executed == at(backup)
        assert fault(server, at(backup)) is None
        assert isinstance(fault(server, at(f"0-{PRIMARY}-6")), BinlogPurged)
    # As the primary's next transaction comes by replication.
    statements(database, f"SET SESSION server_id = {PRIMARY}", "CREATE DATABASE shop")
    statements(database, "CREATE DATABASE more")

    with looked_at(database) as server:
        lacking = fault(server, at(f"0-{PRIMARY}-6"))
        with closing(server.open_rest(at(backup))) as stream:
            sent = [str(each) for each in transactions(stream, Flavor.MARIADB, "")]

        assert isinstance(lacking, BinlogPurged)
        assert f"5-{PRIMARY}-1" in str(lacking)
        assert fault(server, at(backup)) is None
        assert sent == [f"0-{PRIMARY}-7", executed(database)]
        assert str(server.history().executed).endswith(f",5-{PRIMARY}-1")
    with database.connect() as reader, consistent_snapshot(reader, Flavor.MARIADB) as place:
        assert place.seen.includes(at(f"5-{PRIMARY}-1"))


def test_first_number_of_a_domain_may_be_the_second_one(start_mariadb: StartServer) -> None:
    """What came before it, a single transaction, is gone like any other."""
    database = start_mariadb()
    with looked_at(database) as server:
        statements(database, "CREATE DATABASE a")  # behind the look
        with closing(server.open_rest(at(executed(database)))) as stream:
            assert list(transactions(stream, Flavor.MARIADB, "")) == []
    own = executed(database)
    statements(database, f"SET GLOBAL gtid_slave_pos = '{own},5-{PRIMARY}-1'")
    write_domain(database, 5, "CREATE DATABASE shop")

    with looked_at(database) as server:
        lacking = fault(server, MariadbGtidSet())

        assert isinstance(lacking, BinlogPurged)
        assert f"5-{PRIMARY}-1" in str(lacking)
    # A newer backup is loaded over the binlogs, and the server goes on writing.
    statements(database, f"SET GLOBAL gtid_slave_pos = '{own},5-{PRIMARY}-9'")
    write_domain(database, 5, "CREATE DATABASE more")
    with looked_at(database) as server:
        assert isinstance(fault(server, at(f"5-{PRIMARY}-1")), BinlogPurged)
        assert isinstance(fault(server, at(f"5-{PRIMARY}-8")), BinlogPurged)
        assert fault(server, at(f"5-{PRIMARY}-9")) is None


def test_every_last_transaction_is_compared_with_the_servers(database: DatabaseFixture) -> None:
    """Another one under the GTID of any is named, however many the log has read since."""
    before = executed(database)
    name = database.new_database()
    statements(database, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    with looked_at(database) as server:
        earlier, newest = read_since(server, before)
        other = replace(earlier, commit_us=earlier.commit_us - 1_000_000)

        assert check_lasts(server, (earlier, newest)) == ""
        with pytest.raises(HistoryRewritten, match=f"--lost {earlier.gtid} --reason"):
            check_lasts(server, (other, newest))


def test_numbers_that_ran_backwards_are_no_loss_where_the_place_is_unknown(
    start_mariadb: StartServer,
) -> None:
    """The last transaction is found by its time in a file that its number does not point to."""
    database = start_mariadb()
    statements(database, "SET SESSION gtid_seq_no = 90", "CREATE DATABASE a")
    with looked_at(database) as server:
        [last] = read_since(server)
    with database.connect() as connection:
        rows(connection, "SET GLOBAL gtid_strict_mode = 0")
        rows(connection, "SET SESSION gtid_seq_no = 80")
        rows(connection, "CREATE DATABASE b")
        rows(connection, "FLUSH BINARY LOGS")
        rows(connection, "SET SESSION gtid_seq_no = 91")
        rows(connection, "CREATE DATABASE c")
        rows(connection, "SET GLOBAL gtid_strict_mode = 1")

    named = f"--gtid {last.gtid.replace('-90', '-80')} --reason"
    moved = (last, replace(last, server="7"), replace(last, binlog_pos=last.binlog_pos + 1))
    with looked_at(database) as server:
        for place in moved:
            with pytest.raises(NumbersRanBackwards, match=named):
                check_lasts(server, (place,))


def test_backup_that_was_loaded_over_binlogs_is_no_failover_that_lost_transactions(
    start_mariadb: StartServer,
) -> None:
    """What lies between is in no binlog: neither was it lost, nor does the stream leave it out."""
    database = start_mariadb()
    with database.connect() as connection:
        rows(connection, f"SET SESSION server_id = {PRIMARY}")
        rows(connection, "CREATE DATABASE a")
        rows(connection, f"SET GLOBAL gtid_slave_pos = '0-{PRIMARY}-9'")
        rows(connection, "CREATE DATABASE b")
    read = LastTransaction(f"0-{PRIMARY}-8", 0, str(PRIMARY), "binlog.000003", 500)
    with looked_at(database) as server:
        with pytest.raises(BinlogPurged, match="a backup was loaded over them"):
            check_lasts(server, (read,))
        with pytest.raises(BinlogPurged), closing(server.open_rest(at(read.gtid))) as stream:
            list(transactions(stream, Flavor.MARIADB, "the stream"))
