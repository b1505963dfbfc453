"""Fresh reads after a failover that lost transactions, while the demoted server still answers."""

import pytest

from caching.errors import Stale
from caching.reading.own_writes import ReadYourWrites
from event_token import EventToken, MariadbGtidSet, Order, compare
from tests.caching.reading.reading import (
    SHARD,
    Pair,
    allow_reads,
    reader_of,
    run,
    server_name,
    written,
)
from tests.database_servers import StartServer
from tests.producers.servers.replication import (
    REPLICA,
    follow,
    promote,
    start_pair_with_table,
    wait_same,
)

LOST = 2


def lossy_failover(start_server: StartServer, *options: str) -> Pair:
    """The former primary, with rows 1 and 2 that nobody else has, and the promoted replica."""
    demoted, promoted, name = start_pair_with_table(start_server, options)
    allow_reads(demoted, name)
    run(demoted, f"INSERT INTO {name}.t VALUES (0)")
    wait_same(promoted, demoted)
    run(promoted, f"STOP {REPLICA[promoted.flavor]}")
    for number in range(1, LOST + 1):
        run(demoted, f"INSERT INTO {name}.t VALUES ({number})")
    promote(promoted)
    return Pair(demoted, promoted, name)


@pytest.mark.parametrize("options", [(), ("--log-slave-updates=OFF",)])
def test_mariadb_a_demoted_server_does_not_pass_for_fresh(
    start_mariadb: StartServer, options: tuple[str, ...]
) -> None:
    """Its numbers are as high as the new primary's, whose writes it has never had."""
    pair = lossy_failover(start_mariadb, *options)
    rows = f"SELECT id FROM {pair.name}.t ORDER BY id"
    with reader_of(pair.primary) as demoted, reader_of(pair.replica) as promoted:
        lost = demoted.execute(rows).token
        token = written(promoted, pair.replica, f"INSERT INTO {pair.name}.t VALUES (9)")

        old = demoted.execute(rows, compare_event_token=token)
        new = promoted.execute(rows, compare_event_token=token)

        assert lost is not None
        assert (old.rows, old.fresher) == ([(0,), (1,), (2,)], None)
        assert (new.rows, new.fresher) == ([(0,), (9,)], True)
        with pytest.raises(Stale, match="lacks 0-"):
            demoted.execute(rows, at_least=token)
        with pytest.raises(Stale, match="a failover has lost the change"):
            promoted.execute(rows, at_least=lost)
        with reader_of(pair.primary, pair.replica) as both:
            found = both.execute(rows, at_least=token)
        assert (found.rows, found.server) == (new.rows, server_name(pair.replica))


def test_mariadb_what_a_failover_did_not_lose_stays_proven(start_mariadb: StartServer) -> None:
    """Tokens from before are included in those of both servers, also when the first returns."""
    first, second, name = start_pair_with_table(start_mariadb)
    allow_reads(first, name)
    rows = f"SELECT id FROM {name}.t ORDER BY id"
    session = ReadYourWrites()
    with reader_of(first) as one, reader_of(second) as two:
        for number in range(3):
            session.wrote(written(one, first, f"INSERT INTO {name}.t VALUES ({number})"))
        wait_same(second, first)
        before = [token for reader in (one, two) if (token := reader.execute(rows).token)]
        assert len(before) == 2
        promote(second)
        follow(first, second)
        session.wrote(written(two, second, f"INSERT INTO {name}.t VALUES (9)"))
        wait_same(first, second)
    run(second, "FLUSH BINARY LOGS")
    second.server.kill()
    second.server.start()
    wait_same(first, second)
    with reader_of(first) as one, reader_of(second) as two:
        run(second, f"INSERT INTO {name}.t VALUES (10)")
        wait_same(first, second)
        for reader in (one, two):
            after = reader.execute(rows, at_least=session)
            assert len(after.rows) == 5
            assert after.token is not None
            for token in before:
                assert compare(after.token, token) is Order.NEWER
        promote(first)
        follow(second, first)
        session.wrote(written(one, first, f"INSERT INTO {name}.t VALUES (11)"))
        wait_same(second, first)
        for reader in (one, two):
            after = reader.execute(rows, at_least=[*session, *before])
            assert len(after.rows) == 6


def test_mariadb_a_server_that_is_rebuilt_knows_who_wrote_before(
    start_mariadb: StartServer,
) -> None:
    """Lost numbers of the demoted server are not among those that it writes after its return."""
    pair = lossy_failover(start_mariadb)
    rows = f"SELECT id FROM {pair.name}.t ORDER BY id"
    with reader_of(pair.primary) as demoted, reader_of(pair.replica) as promoted:
        lost = demoted.execute(rows).token
        for number in range(3, 6):
            written(promoted, pair.replica, f"INSERT INTO {pair.name}.t VALUES ({number})")
        with pair.replica.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT @@GLOBAL.gtid_binlog_pos")
            [(position,)] = cursor.fetchall()
        # As a backup of the new primary would leave it.
        run(
            pair.primary,
            f"DELETE FROM {pair.name}.t WHERE id IN (1, 2)",
            f"INSERT INTO {pair.name}.t VALUES (3), (4), (5)",
            "RESET MASTER",
            f"SET GLOBAL gtid_slave_pos = '{position}'",
        )
        token = written(demoted, pair.primary, f"INSERT INTO {pair.name}.t VALUES (6)")

        assert lost is not None
        assert compare(token, lost) is Order.UNKNOWN
        assert len(demoted.execute(rows, at_least=token).rows) == 5
        with reader_of(pair.primary) as later, pytest.raises(Stale, match="has lost the change"):
            later.execute(rows, at_least=lost)


def test_mysql_a_demoted_server_does_not_pass_for_fresh(start_mysql: StartServer) -> None:
    """MySQL's sets name every transaction."""
    pair = lossy_failover(start_mysql)
    rows = f"SELECT id FROM {pair.name}.t ORDER BY id"
    with reader_of(pair.primary) as demoted, reader_of(pair.replica) as promoted:
        token = written(promoted, pair.replica, f"INSERT INTO {pair.name}.t VALUES (9)")

        assert demoted.execute(rows, compare_event_token=token).fresher is None
        assert promoted.execute(rows, compare_event_token=token).fresher is True


def test_mariadb_a_primary_has_what_came_with_its_backup(start_mariadb: StartServer) -> None:
    """No binlog of it has that, and its reads contain it."""
    database = start_mariadb()
    run(database, "SET GLOBAL gtid_slave_pos = '5-41-2'")
    with database.one_table() as (name, _):
        allow_reads(database, name)
        with reader_of(database) as reader:
            came, later = (
                EventToken(None, SHARD, MariadbGtidSet.parse(f"5-41-{number}")) for number in (2, 3)
            )

            rows = f"SELECT id FROM {name}.t"
            assert reader.execute(rows, compare_event_token=came).fresher is True
            assert reader.execute(rows, compare_event_token=later).fresher is not True
