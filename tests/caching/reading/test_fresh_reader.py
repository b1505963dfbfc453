"""Fresh reads on a primary of either family."""

import re
import secrets
from collections.abc import Callable
from contextlib import suppress

import pymysql
import pytest

from caching.errors import Stale
from caching.reading import fresh_reader
from caching.reading.connections import Connect
from caching.reading.fresh_reader import FreshReader
from caching.reading.snapshots import FILTER_GRANTS, ROLE_GRANT
from databases.errors import ServerLost, ServerRefused
from databases.internal_tables import HEARTBEAT, INTERNAL_DATABASE, create_internal_tables
from databases.server_facts import SHOW_PLACE, START_SNAPSHOT
from event_token import EventToken, Flavor, GtidSet, UsageError, parse_gtid_set
from tests.caching.reading.claims import READS, claims_beside_writers, count_of
from tests.caching.reading.reading import (
    DRIVERS,
    KEYSPACE,
    PASSWORD,
    SHARD,
    HookedConnection,
    allow_reads,
    by_pymysql,
    documented_grants,
    hooked,
    reader_of,
    run,
    server_name,
    written,
)
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import executed


def table(database: DatabaseFixture) -> str:
    """A new schema with the table `t (id)`, which the account may read."""
    with database.one_table() as (name, _):
        allow_reads(database, name)
        return name


def executed_set(database: DatabaseFixture) -> GtidSet:
    return parse_gtid_set(executed(database), database.flavor)


@pytest.mark.parametrize("connect", DRIVERS)
def test_a_read_returns_its_rows_with_a_token(
    database: DatabaseFixture, connect: Callable[[DatabaseFixture], Connect]
) -> None:
    """Any driver: rows as it returns them, a token of all that was committed, and who answered."""
    name = table(database)
    with reader_of(database, connect=connect) as reader:
        before = reader.execute(f"SELECT * FROM {name}.t")
        token = written(reader, database, f"INSERT INTO {name}.t VALUES (7)")

        after = reader.execute(
            f"SELECT id FROM {name}.t WHERE id > %s AND id LIKE '7%%'",
            (6,),
            compare_event_token=token.to_string(),
            at_least=token,
        )
        like = reader.execute(f"SELECT id FROM {name}.t WHERE id LIKE '7%'")
        without = reader.execute(f"SELECT id FROM {name}.t", include_event_token=False)

    assert before.rows == []
    assert [list(row.values() if isinstance(row, dict) else row) for row in after.rows] == [[7]]
    assert like.rows == after.rows
    assert after.fresher is True
    assert after.token is not None
    assert before.token is not None
    assert after.token.position.includes(before.token.position)
    assert not before.token.position.includes(token.position)
    assert after.server == server_name(database)
    assert without.token is None
    assert without.fresher is None


def test_a_commit_between_token_and_rows_is_not_in_the_token(database: DatabaseFixture) -> None:
    """R13: the token is older than the rows, never newer; there is no way to ask for it later."""
    name = table(database)

    def commit_before_rows(statement: str) -> None:
        if statement.startswith("SELECT id"):
            run(database, f"INSERT INTO {name}.t VALUES (1)")

    connect = hooked(by_pymysql(database), commit_before_rows)
    with FreshReader(KEYSPACE, SHARD, [connect], flavor=database.flavor) as reader:
        before = executed_set(database)
        found = reader.execute(f"SELECT id FROM {name}.t")

    assert found.token is not None
    assert found.token.position.includes(before)
    assert not found.token.position.includes(executed_set(database))


def test_tokens_claim_nothing_that_the_rows_lack(database: DatabaseFixture) -> None:
    """While others commit and binlogs rotate, every transaction of the token is in the rows."""
    name = table(database)

    claims = claims_beside_writers(database, database, name, "FLUSH BINARY LOGS")

    assert len(claims) > READS / 2
    assert [claim for claim in claims if claim.in_token > claim.in_rows] == []
    assert claims[-1].in_token > 0


def test_uncommitted_rows_are_never_read(database: DatabaseFixture) -> None:
    """H9: a connection that reads uncommitted rows by default does not do so for a reader."""
    name = table(database)
    dirty = "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"
    connect = by_pymysql(database, init_command=dirty)
    with database.connect(autocommit=False) as writer, writer.cursor() as cursor:
        cursor.execute(f"INSERT INTO {name}.t VALUES (1)")
        with FreshReader(KEYSPACE, SHARD, [connect], flavor=database.flavor) as reader:
            found = reader.execute(f"SELECT * FROM {name}.t")
        with connect() as plain, plain.cursor() as asking:
            asking.execute(f"SELECT * FROM {name}.t")
            seen = asking.fetchall()

    assert found.rows == []
    assert seen == ((1,),)


def test_an_open_transaction_is_refused_and_stays_as_it_is(database: DatabaseFixture) -> None:
    """Neither a read nor `committed` ends or joins the transaction of an application."""
    name = table(database)
    connection = by_pymysql(database, autocommit=True)()
    reader = FreshReader(KEYSPACE, SHARD, [lambda: connection], flavor=database.flavor)
    with connection, connection.cursor() as cursor:
        assert reader.execute(f"SELECT * FROM {name}.t").rows == []
        cursor.execute("BEGIN")
        cursor.execute(f"INSERT INTO {name}.t VALUES (1)")

        with pytest.raises(UsageError, match="open transaction"):
            reader.execute(f"SELECT * FROM {name}.t")
        with pytest.raises(UsageError, match="open transaction"):
            reader.committed(connection)
        with reader_of(database) as other:
            assert other.execute(f"SELECT * FROM {name}.t").rows == []
        connection.commit()
        token = reader.committed(connection)

        assert reader.execute(f"SELECT * FROM {name}.t", at_least=token).rows == [(1,)]


def test_a_statement_that_fails_leaves_the_connection_usable(database: DatabaseFixture) -> None:
    """The driver's own error passes, also that of a write, and the next read is a new one."""
    name = table(database)
    made: list[int] = []
    connect = hooked(by_pymysql(database), lambda _: None)

    def counted() -> object:
        made.append(1)
        return connect()

    with FreshReader(KEYSPACE, SHARD, [counted], flavor=database.flavor) as reader:
        with pytest.raises(pymysql.err.ProgrammingError, match="nothing"):
            reader.execute(f"SELECT * FROM {name}.nothing")
        with pytest.raises(pymysql.err.OperationalError, match="READ ONLY"):
            reader.execute(f"INSERT INTO {name}.t VALUES (1)")

        assert reader.execute(f"SELECT * FROM {name}.t").rows == []
    assert len(made) == 1


@pytest.mark.parametrize("connect", DRIVERS)
def test_a_dead_connection_is_opened_again_once(
    database: DatabaseFixture, connect: Callable[[DatabaseFixture], Connect]
) -> None:
    """A read goes on over a new connection; one that dies as well ends it with ServerLost."""
    name = table(database)
    kill_all = [False]

    def kill() -> None:
        with database.connect() as root, root.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE user = 'reader'")
            for (number,) in cursor.fetchall():
                with suppress(pymysql.err.MySQLError):  # it has just gone by itself
                    cursor.execute(f"KILL {number}")

    def kill_before_rows(statement: str) -> None:
        if kill_all[0] and statement.startswith("SELECT * FROM"):
            kill()

    servers = [hooked(connect(database), kill_before_rows)]
    with FreshReader(KEYSPACE, SHARD, servers, flavor=database.flavor) as reader:
        assert reader.execute(f"SELECT * FROM {name}.t").rows == []
        kill()
        assert reader.execute(f"SELECT * FROM {name}.t").rows == []
        kill_all[0] = True
        with pytest.raises(ServerLost, match="no server answers"):
            reader.execute(f"SELECT * FROM {name}.t")


def test_the_documented_grants_are_those_that_are_used() -> None:
    """The page grants what the reader's statements need, and nothing else."""
    assert list(documented_grants(Flavor.MYSQL).values()) == [
        *(f"GRANT {grant} TO reader@'%'" for grant in (ROLE_GRANT, *FILTER_GRANTS)),
        f"GRANT SELECT ON {INTERNAL_DATABASE}.* TO reader@'%'",
    ]


def test_the_missing_grant_is_named(mysql_a: DatabaseFixture) -> None:
    """An account without the privilege is told the statement, and it is enough."""
    name = table(mysql_a)
    run(
        mysql_a,
        "DROP USER IF EXISTS poor@'%'",
        f"CREATE USER poor@'%' IDENTIFIED BY '{PASSWORD}'",
        f"GRANT SELECT ON {name}.* TO poor@'%'",
    )

    def connect() -> object:
        return pymysql.connect(host=mysql_a.host, port=mysql_a.port, user="poor", password=PASSWORD)

    with FreshReader(KEYSPACE, SHARD, [connect], flavor="mysql") as reader:
        with pytest.raises(ServerRefused, match="Fix: GRANT") as refused:
            reader.execute(f"SELECT * FROM {name}.t")
        assert reader.check().problems == [f"{KEYSPACE}/{SHARD}: {refused.value}"]
        run(mysql_a, str(refused.value).partition("Fix: ")[2])

        assert reader.execute(f"SELECT * FROM {name}.t").rows == []


def test_a_preflight_asks_the_servers(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings, another shard's server, and one that is down are named, each with its fix."""
    table(database)
    other = f"shard-{secrets.token_hex(4)}"

    def down() -> object:
        raise ConnectionRefusedError("nobody is there")

    with database.connect(autocommit=True) as connection, connection.cursor() as cursor:
        create_internal_tables(connection, [HEARTBEAT])
        cursor.execute(f"INSERT INTO {HEARTBEAT} VALUES ('{other}', 1, 1, 1, 'ks')")
        servers = [down, by_pymysql(database)]
        with FreshReader(KEYSPACE, "71-72", servers, flavor=database.flavor) as reader:
            well = reader.check()
            off = {"general_log": "SET GLOBAL general_log = ON"}
            monkeypatch.setattr(fresh_reader, "server_settings", lambda *_, **__: off)
            unwell = reader.check()
        with FreshReader(KEYSPACE, SHARD, [down], flavor=database.flavor) as reader:
            alone = reader.check()
        cursor.execute(f"DELETE FROM {HEARTBEAT} WHERE shard = '{other}'")

    assert well.problems == []
    assert any("its heartbeat rows are of" in text and other in text for text in well.warnings)
    assert any("nobody is there" in text for text in well.warnings)
    [problem] = unwell.problems
    assert re.search(r"general_log=(0|OFF)\. Fix: SET GLOBAL general_log = ON", problem)
    [problem] = alone.problems
    assert "nobody is there" in problem


def test_what_cannot_be_is_refused(database: DatabaseFixture) -> None:
    """The other family, no server, and a wrong password end with one sentence."""
    other = Flavor.MYSQL if database.flavor is Flavor.MARIADB else Flavor.MARIADB
    allow_reads(database, database.new_database())

    with pytest.raises(UsageError, match=f"flavor is {other}"):
        FreshReader(KEYSPACE, SHARD, [by_pymysql(database)], flavor=other).execute("SELECT 1")
    with pytest.raises(UsageError, match="at least one server"):
        FreshReader(KEYSPACE, SHARD, [], flavor=other)
    with pytest.raises(ServerRefused, match="1045"):
        FreshReader(
            KEYSPACE,
            SHARD,
            [
                lambda: pymysql.connect(
                    host=database.host, port=database.port, user="reader", password="wrong"
                )
            ],
            flavor=database.flavor,
        ).execute("SELECT 1")


def test_the_primary_that_lacks_a_change_is_named(database: DatabaseFixture) -> None:
    """A write that a failover lost: Stale names the server, the shard and the GTIDs."""
    allow_reads(database, database.new_database())
    mysql = "00000000-0000-0000-0000-00000000dead:1-3"
    lost = parse_gtid_set(mysql if database.flavor is Flavor.MYSQL else "77-1-5", database.flavor)
    wanted = EventToken(None, SHARD, lost)
    with reader_of(database) as reader, pytest.raises(Stale) as raised:
        reader.execute("SELECT 1", at_least=wanted)

    assert raised.value.is_lost
    assert raised.value.wanted == wanted
    for part in (f"{KEYSPACE}.{SHARD}", server_name(database), str(lost), "failover"):
        assert part in str(raised.value)


def test_a_place_at_the_beginning_of_a_binlog_gives_no_token(mariadb_a: DatabaseFixture) -> None:
    """The last commit of the file before may not be visible yet: no claim until the next one."""
    name = table(mariadb_a)
    with reader_of(mariadb_a) as reader:
        token = written(reader, mariadb_a, f"INSERT INTO {name}.t VALUES (1)")
        run(mariadb_a, "FLUSH BINARY LOGS")

        found = reader.execute(f"SELECT * FROM {name}.t", compare_event_token=token)
        with pytest.raises(Stale, match="has just begun a new file") as raised:
            reader.execute(f"SELECT * FROM {name}.t", at_least=token)
        run(mariadb_a, f"INSERT INTO {name}.t VALUES (2)")
        later = reader.execute(f"SELECT * FROM {name}.t", at_least=token)

    assert found.rows == [(1,)]
    assert found.token is None
    assert found.fresher is None
    assert not raised.value.is_lost
    assert later.rows == [(1,), (2,)]


@pytest.mark.parametrize(("moves", "is_known"), [(1, True), (2, False)])
def test_a_place_that_changes_during_the_read_is_not_believed(
    mariadb_a: DatabaseFixture, moves: int, is_known: bool
) -> None:
    """The read begins again once; then its rows come without a token."""
    name = table(mariadb_a)
    connection = by_pymysql(mariadb_a, autocommit=True)()
    shows: list[int] = []

    def move_before_second_show(statement: str) -> None:
        if statement != SHOW_PLACE:
            return
        shows.append(1)
        if len(shows) in {2 * move for move in range(1, moves + 1)}:
            run(mariadb_a, f"INSERT INTO {name}.t VALUES ({len(shows)})")
            with connection.cursor() as cursor:
                cursor.execute("COMMIT")
                cursor.execute(START_SNAPSHOT)

    servers = [lambda: HookedConnection(connection, move_before_second_show)]
    with FreshReader(KEYSPACE, SHARD, servers, flavor="mariadb") as reader:
        run(mariadb_a, f"INSERT INTO {name}.t VALUES (0)")
        found = reader.execute(f"SELECT id FROM {name}.t")

    assert found.rows == [(0,), (2,)]
    assert (found.token is not None) is is_known


def test_a_rotation_between_the_two_looks_at_the_place(mariadb_a: DatabaseFixture) -> None:
    """What another session's SHOW STATUS changes is read again; what it claims is in the rows."""
    name = table(mariadb_a)
    times: list[int] = []

    def rotate_before_rows(statement: str) -> None:
        if statement.startswith("SELECT id"):
            times.append(1)
            run(
                mariadb_a,
                f"INSERT INTO {name}.t VALUES ({len(times)})",
                "FLUSH BINARY LOGS",
                f"INSERT INTO {name}.t VALUES ({len(times) + 10})",
                "SHOW STATUS LIKE 'binlog_snapshot_%'",
            )

    connect = hooked(by_pymysql(mariadb_a), rotate_before_rows)
    with FreshReader(KEYSPACE, SHARD, [connect], flavor="mariadb") as reader:
        before = executed_set(mariadb_a)
        found = reader.execute(f"SELECT id FROM {name}.t")

    assert found.token is not None
    assert found.token.position.includes(before)
    assert count_of(found.token.position) - count_of(before) == len(found.rows)
