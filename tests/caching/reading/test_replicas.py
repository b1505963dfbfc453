"""Fresh reads from replicas: lag, waiting, and roles that change."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from caching.errors import Stale, TooOld
from caching.reading.connections import Connect
from databases.errors import ServerLost
from databases.internal_tables import HEARTBEAT, create_internal_tables
from event_token import Flavor
from tests.caching.reading.claims import READS, claims_beside_writers
from tests.caching.reading.reading import (
    BEAT_US,
    KEYSPACE,
    SHARD,
    WRITTEN,
    WRITTEN_US,
    Pair,
    by_pymysql,
    hooked,
    reader_of,
    run,
    server_name,
    written,
)
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import REPLICA, follow, promote, wait_same
from tests.waiting import WAIT_S

UNLOGGED = "SET SESSION sql_log_bin = 0"
FILTERS = "performance_schema.replication_applier_filters"
# Longer than any test.
DELAY_S = 3_600


def set_delay(replica: DatabaseFixture, delay_s: int) -> None:
    """Hold the replica back; 0 lets it go on."""
    word = REPLICA[replica.flavor]
    change = f"CHANGE REPLICATION SOURCE TO SOURCE_DELAY = {delay_s}"
    if replica.flavor is Flavor.MARIADB:
        change = f"CHANGE MASTER TO MASTER_DELAY = {delay_s}"
    run(replica, f"STOP {word}", change, f"START {word}")


@contextmanager
def held_back(pair: Pair) -> Iterator[None]:
    """The replica lags for the whole block."""
    set_delay(pair.replica, DELAY_S)
    try:
        yield
    finally:
        set_delay(pair.replica, 0)
        wait_same(pair.replica, pair.primary)


def test_the_preferred_server_is_asked_before_those_of_its_role(pair: Pair) -> None:
    """Roles come first, for they decide; a name that no server has changes nothing."""
    with reader_of(pair.replica, pair.replica, pair.primary) as reader:
        reader.execute("SELECT 1", server="primary")
        reader.execute("SELECT 1")
        first, second, primary = reader._servers
        assert first.name == server_name(pair.replica)
        assert (primary.name, primary.was_primary) == (server_name(pair.primary), True)
        second.name = "second"
        second.close()
        for name, asked in ((None, 0), ("second", 1), (primary.name, 0), ("nobody", 0)):
            for each in (first, second):
                each.close()
            rows = reader.execute("SELECT 1", prefer=name)
            assert [len(each._idle.here()) for each in (first, second)] == [1 - asked, asked]
            assert not rows.is_primary
            second.name = "second"


def test_a_preflight_without_a_primary_warns(pair: Pair) -> None:
    """The roles are those that the servers tell, and a replica that leaves changes out is named."""
    without = "none of its servers is a primary"
    with reader_of(pair.replica) as alone, reader_of(pair.replica, pair.primary) as both:
        assert any(without in text for text in alone.check().warnings)
        found = both.check()

    assert found.problems == []
    assert not any(without in text for text in found.warnings)
    word, is_mysql = REPLICA[pair.replica.flavor], pair.replica.flavor is Flavor.MYSQL
    set_filter = "CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = ({0})"
    if not is_mysql:
        set_filter = "SET GLOBAL replicate_ignore_table = '{0}'"
    try:
        run(pair.replica, f"STOP {word}", set_filter.format(f"{pair.name}.left"), f"START {word}")
        with reader_of(pair.replica, pair.primary) as reader:
            [problem] = reader.check().problems
        assert f"replicate_ignore_table is {pair.name}.left: its rows lack" in problem
        run(
            pair.replica,
            UNLOGGED,
            f"REVOKE SELECT ON {FILTERS} FROM reader@'%'"
            if is_mysql
            else "REVOKE REPLICA MONITOR ON *.* FROM reader@'%'",
        )
        with reader_of(pair.replica, pair.primary) as reader:
            [problem] = reader.check().problems
        assert "replication filters cannot be seen" in problem
        fix = problem.partition("Fix: ")[2].replace("; ", ";\n").splitlines()
        run(pair.replica, UNLOGGED, *fix)
    finally:
        run(pair.replica, f"STOP {word}", set_filter.format(""), f"START {word}")
    with reader_of(pair.replica, pair.primary) as reader:
        assert reader.check().problems == []


def test_a_lagging_replica_says_that_it_is_not_fresh(pair: Pair) -> None:
    """Its rows are returned with their own token, and `fresher` is False; none is claimed."""
    rows = f"SELECT id FROM {pair.name}.t"
    with reader_of(pair.replica, pair.primary) as reader, held_back(pair):
        token = written(reader, pair.primary, f"INSERT INTO {pair.name}.t VALUES (1)")

        old = reader.execute(rows, compare_event_token=token)
        new = reader.execute(rows, compare_event_token=token, server="primary")

    assert (old.rows, old.fresher, old.server) == ([], False, server_name(pair.replica))
    assert (new.rows, new.fresher, new.server) == ([(1,)], True, server_name(pair.primary))
    assert old.token is not None
    assert not old.token.position.includes(token.position)


def test_an_own_write_is_read_from_the_primary_while_the_replica_lacks_it(pair: Pair) -> None:
    """H8: `at_least` never returns rows from before the write, however far the replica lags."""
    rows = f"SELECT id FROM {pair.name}.t"
    with reader_of(pair.replica, pair.primary) as reader, held_back(pair):
        for number in range(3):
            token = written(reader, pair.primary, f"INSERT INTO {pair.name}.t VALUES ({number})")

            found = reader.execute(rows, at_least=token)

            assert len(found.rows) == number + 1
            assert found.server == server_name(pair.primary)
        with pytest.raises(Stale, match="no server that has it answers") as raised:
            reader_of(pair.replica).execute(rows, at_least=token)
    assert not raised.value.is_lost
    assert server_name(pair.replica) in str(raised.value)


def test_rows_of_an_age_are_read_where_a_heartbeat_row_proves_it(pair: Pair) -> None:
    """A replica that lags is waited for, then the primary answers; one that follows answers."""
    with pair.primary.connect() as connection:
        create_internal_tables(connection)
    wait_same(pair.replica, pair.primary)
    times = f"{BEAT_US}, {WRITTEN_US}, {WRITTEN_US}"
    now = f"REPLACE INTO {HEARTBEAT} VALUES ('{SHARD}', {times}, '{KEYSPACE}')"
    with reader_of(pair.replica, pair.primary) as reader:
        with held_back(pair):
            run(pair.primary, now)
            # Longer than the first look at the replica takes on a busy machine.
            found = reader.execute("SELECT 1", at_least=WRITTEN, wait_s=2)
            assert (found.is_primary, found.has_waited) == (True, True)
            with pytest.raises(TooOld, match=r"\(replica\) has no time: there is no heartbeat row"):
                reader.execute("SELECT 1", max_age_ms=0, server="replica", wait_s=0)
        found = reader.execute("SELECT 1", at_least=WRITTEN)
        assert (found.is_primary, found.complete_to) == (False, WRITTEN)
    run(pair.primary, f"DELETE FROM {HEARTBEAT} WHERE shard = '{SHARD}'")


def test_a_replica_that_catches_up_is_waited_for(pair: Pair) -> None:
    """Within `wait_s` the replica itself answers, as soon as it has the write."""
    waits = ("WAIT_FOR_EXECUTED_GTID_SET", "MASTER_GTID_WAIT")

    def go_on_before_wait(statement: str) -> None:
        if any(wait in statement for wait in waits):
            set_delay(pair.replica, 0)

    def connect(database: DatabaseFixture) -> Connect:
        return hooked(by_pymysql(database), go_on_before_wait)

    with (
        held_back(pair),
        reader_of(pair.primary) as writer,
        reader_of(pair.replica, pair.primary, connect=connect) as reader,
    ):
        token = written(writer, pair.primary, f"INSERT INTO {pair.name}.t VALUES (1)")
        found = reader.execute(f"SELECT id FROM {pair.name}.t", at_least=token, wait_s=WAIT_S)

    assert found.rows == [(1,)]
    assert found.server == server_name(pair.replica)
    assert (found.has_waited, found.is_primary) == (True, False)


@pytest.mark.full
def test_a_replica_claims_nothing_that_its_rows_lack(pair: Pair) -> None:
    """With parallel appliers, every transaction of the token is in the rows."""
    claims = claims_beside_writers(pair.primary, pair.replica, pair.name, "FLUSH BINARY LOGS")
    wait_same(pair.replica, pair.primary)

    assert len(claims) == READS
    assert [claim for claim in claims if claim.in_token > claim.in_rows] == []


def test_roles_are_asked_of_the_servers(pair: Pair) -> None:
    """A promoted replica is the primary at the next read, whatever the order in the settings."""
    rows = f"SELECT id FROM {pair.name}.t"
    with reader_of(pair.replica) as reader:
        assert reader.execute(rows, server="replica").server == server_name(pair.replica)
        with pytest.raises(ServerLost, match=r"no primary answers.*has the other role"):
            reader.execute(rows, server="primary")
        promote(pair.replica)
        try:
            assert reader.execute(rows, server="primary").token is not None
            with pytest.raises(ServerLost, match="no replica answers"):
                reader.execute(rows, server="replica")
        finally:
            follow(pair.replica, pair.primary)


def test_a_write_that_a_failover_lost_is_named(pair: Pair) -> None:
    """The promoted replica never got the write: Stale says so, with its GTIDs."""
    with reader_of(pair.primary, pair.replica) as reader, held_back(pair):
        token = written(reader, pair.primary, f"INSERT INTO {pair.name}.t VALUES (1)")
        promote(pair.replica)
        try:
            with pytest.raises(Stale, match="a failover has lost the change") as raised:
                reader_of(pair.replica).execute("SELECT 1", at_least=token)
        finally:
            follow(pair.replica, pair.primary)

    assert raised.value.is_lost
    lost = str(raised.value).partition(" lacks ")[2].partition(":")[0]
    assert lost
    assert lost in str(token.position)


def test_a_server_that_is_gone_is_passed_over(pair: Pair) -> None:
    """The next server answers; what was wrong is said only if nobody does."""

    def nobody() -> object:
        raise ConnectionRefusedError("nobody listens")

    with reader_of(pair.replica, pair.primary) as reader:
        reader._servers[0]._connect = nobody

        found = reader.execute(f"SELECT id FROM {pair.name}.t")

        assert found.server == server_name(pair.primary)
        with pytest.raises(ServerLost, match="nobody listens"):
            reader.execute(f"SELECT id FROM {pair.name}.t", server="replica")
