"""Writes are stopped and opened on one server, and what keeps them from being stopped."""

import socket
from dataclasses import replace
from typing import Any

import pymysql
import pytest

from databases.internal_tables import JOURNAL, create_internal_tables
from event_token.errors import Halt, Rebuild, UsageError
from resharding.switch import opening
from resharding.switch.decision import Action, JournalRow, SwitchStep
from resharding.switch.executor import run_switch
from resharding.switch.shard_writes import STOPS_MAX, ShardWrites
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import statements
from tests.resharding.accounts import resharder_of
from tests.resharding.switchable import (
    APP,
    APP_PASSWORD,
    SOURCE,
    app_session,
    lets_in,
    make_account,
    split,
)
from tests.waiting import wait_for
from topics.progress.record import JournalKind


def nothing(_step: SwitchStep) -> None:
    """Ignore the step."""


def users_of(database: DatabaseFixture) -> list[str]:
    """The users of the sessions that there are."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW PROCESSLIST")
        return [row[1] for row in cursor.fetchall()]


def test_writes_stop_on_both_families(database: DatabaseFixture) -> None:
    """Sessions end, logins are refused until writes open again; the journal keeps its first row."""
    make_account(database, locked=False)
    with pytest.raises(UsageError, match=r"lacks .*PROCESS.*: GRANT .* TO 'shop'@'%'"):
        ShardWrites(
            replace(resharder_of(database, SOURCE), user=APP, password=APP_PASSWORD),
            "ks",
            "r",
            ("x@%",),
        )
    session = app_session(database)
    server = resharder_of(database, SOURCE)
    writes = ShardWrites(server, "ks", "r-accounts", (f"{APP}@%",))
    assert (writes.is_open(), writes.is_quiet()) == (True, False)
    writes.stop_writes()
    assert (writes.is_open(), writes.is_quiet()) == (False, True)
    # An application that tries again and again holds nothing up: it cannot get in any more.
    with socket.create_connection((database.host, database.port)):
        wait_for("it is connecting", lambda: "unauthenticated user" in users_of(database))
        assert writes.is_quiet()
    with pytest.raises(pymysql.err.Error):
        session.cursor().execute("SELECT 1")
    assert not lets_in(database)

    shards = ('["-"]', '["-80", "80-"]')
    while writes.journal() is None:
        writes.insert(JournalRow(JournalKind.END), shards)
    writes.insert(JournalRow(JournalKind.CANCELLED), shards)
    assert writes.journal() == JournalRow(JournalKind.END)
    later = ShardWrites(server, "ks", "r-accounts", (f"{APP}@%",))
    with pytest.raises(Rebuild):
        writes.open_writes()
    later.cancel_end()
    assert later.journal() == JournalRow(JournalKind.CANCELLED)
    assert not lets_in(database)
    later.open_writes()
    assert lets_in(database)
    later.close()
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM _shardstream.journal WHERE reshard_id = 'r-accounts'")
        cursor.execute(f"DROP USER '{APP}'@'%'")


NEAR = f"'{APP}'@'127.0.0.1'"


def add_near_account(database: DatabaseFixture) -> None:
    """Create an account of the application's user that local connections use instead."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER {NEAR} IDENTIFIED BY '{APP_PASSWORD}'")


def test_unlisted_accounts_are_named(database: DatabaseFixture) -> None:
    """Accounts of the same user for other hosts are obstacles unless locked.

    Writes are not stopped again and again for their sessions, which the error names.
    """
    make_account(database, locked=False)
    writes = ShardWrites(resharder_of(database, SOURCE), "ks", "r-hosts", (f"{APP}@%",))
    assert writes.obstacles() == []
    add_near_account(database)
    [text] = writes.obstacles()
    assert "account shop@127.0.0.1 is not in `application_accounts`" in text
    statements(database, f"ALTER USER {NEAR} ACCOUNT LOCK")
    assert writes.obstacles() == []
    statements(database, f"ALTER USER {NEAR} ACCOUNT UNLOCK")
    for _ in range(STOPS_MAX):
        with app_session(database):
            assert not writes.is_quiet()
            writes.stop_writes()
    with app_session(database) as session:
        assert not writes.is_quiet()
        with pytest.raises(Halt) as never_quiet:
            writes.stop_writes()
    assert f": {session.thread_id()} (shop from 127.0.0.1:" in str(never_quiet.value)
    writes.open_writes()
    writes.close()
    statements(database, f"DROP USER {NEAR}, '{APP}'@'%'")


def test_a_server_of_two_keyspaces_has_a_journal_for_each(database: DatabaseFixture) -> None:
    """Reshards of two keyspaces with one id do not meet."""
    make_account(database, locked=False)
    with database.connect() as connection, connection.cursor() as cursor:
        create_internal_tables(connection, (JOURNAL,))
        server, accounts = resharder_of(database, SOURCE), (f"{APP}@%",)
        shards = ('["-"]', '["-80", "80-"]')
        writes = ShardWrites(server, "one", "r1", accounts)
        writes.insert(JournalRow(JournalKind.END), shards)
        assert writes.ended_by() == {"r1"}
        writes = ShardWrites(server, "two", "r1", accounts)
        assert writes.journal() is None
        assert writes.ended_by() == set()
        writes.insert(JournalRow(JournalKind.BEGIN, 7), shards)
        assert writes.journal() == JournalRow(JournalKind.BEGIN, 7)
        writes = ShardWrites(server, "one", "r1", accounts)
        assert writes.journal() == JournalRow(JournalKind.END)
        writes.cancel_end()
        assert writes.journal() == JournalRow(JournalKind.CANCELLED)
        writes.close()
        cursor.execute("DROP DATABASE _shardstream")
        cursor.execute(f"DROP USER '{APP}'@'%'")


def test_what_outlives_the_lock_is_named(database: DatabaseFixture) -> None:
    """B20: prepared transactions, and accounts that cannot be locked, on either family."""
    make_account(database, locked=False)
    schema = database.new_database()
    writes = ShardWrites(resharder_of(database, SOURCE), "ks", "r-xa", (f"{APP}@%",))
    assert writes.obstacles() == []
    with database.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        prepare(cursor, "INSERT INTO t VALUES (1)")
        assert "1 prepared XA transaction(s) could still commit" in writes.obstacles()[0]
        with pytest.raises(Halt, match="Writes are stopped"):
            writes.check_nothing_prepared()
        cursor.execute("XA ROLLBACK 'x'")
        assert writes.obstacles() == []
        if database.flavor.value == "mysql":
            cursor.execute(f"GRANT SYSTEM_USER ON *.* TO '{APP}'@'%'")
            assert f"account {APP}@% has SYSTEM_USER" in writes.obstacles()[0]
        cursor.execute(f"DROP USER '{APP}'@'%'")
        cursor.execute(f"DROP DATABASE {schema}")
    writes.close()


def prepare(cursor: Any, statement: str) -> None:
    """Prepare an XA transaction of one statement."""
    for text in ("XA START 'x'", statement, "XA END 'x'", "XA PREPARE 'x'"):
        cursor.execute(text)


@pytest.mark.full
def test_a_switch_names_what_could_still_write(
    servers: list[DatabaseFixture],
    kafka: KafkaCluster,
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B20: before writes stop, an account that is not listed and a prepared transaction.

    A transaction that is prepared during the switch stops it before END.
    """

    def prepare_late(step: SwitchStep) -> None:
        if step.action is Action.WRITE_END:
            prepare(cursor, insert)

    with (
        split(servers, kafka, keyspace) as world,
        world.servers[SOURCE].connect() as connection,
        connection.cursor() as cursor,
    ):
        world.verified(0)
        add_near_account(world.servers[SOURCE])
        insert = f"INSERT INTO {world.schema}.t VALUES (7000)"
        prepare(cursor, insert)
        with monkeypatch.context() as patch:
            patch.setattr(opening, "READY_S_MAX", 0.0)  # nobody ends it meanwhile
            with pytest.raises(UsageError) as refused:
                run_switch(world.settings, nothing)
        cursor.execute(f"DROP USER {NEAR}")
        cursor.execute("XA ROLLBACK 'x'")
        for text in ("1 prepared XA transaction", "account shop@127.0.0.1 is not in `application_"):
            assert text in str(refused.value)
        assert world.open_shards() == {SOURCE}

        with pytest.raises(Halt, match="could still commit after END"):
            run_switch(world.settings, prepare_late)
        assert [p.mark for p in world.progress(SOURCE) if p.mark] == []
        cursor.execute("XA COMMIT 'x'")
        run_switch(world.settings, nothing)
        assert 7000 in world.ids("-80") + world.ids("80-")
