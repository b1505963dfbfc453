"""Sessions of a reshard on real servers."""

from databases.sql import rows
from resharding.plan.tables import read_definitions
from resharding.server import open_session
from tests.database_servers import DatabaseFixture
from tests.resharding.accounts import resharder_of


def test_a_session_is_shown_all_rows(database: DatabaseFixture) -> None:
    """A limit of rows that the server has for all sessions would make verify and reads wrong."""
    server = resharder_of(database, "-80")
    with database.connect() as root, root.cursor() as cursor:
        cursor.execute("SET GLOBAL sql_select_limit = 1")
        try:
            session = open_session(server)
        finally:
            cursor.execute("SET GLOBAL sql_select_limit = DEFAULT")
    with session, session.cursor() as cursor:
        cursor.execute("SELECT 1 UNION ALL SELECT 2")
        assert len(cursor.fetchall()) == 2


def test_what_a_session_prints_does_not_depend_on_the_server(database: DatabaseFixture) -> None:
    """Under the server's own sql_mode names would have quotes that other servers do not take."""
    server = resharder_of(database, "-80")
    schema = database.new_database()
    with database.connect(database=schema) as root, root.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id CHAR(9) PRIMARY KEY)")
        cursor.execute("INSERT INTO t VALUES ('x')")
        cursor.execute("SELECT @@GLOBAL.sql_mode")
        [(before,)] = cursor.fetchall()
        cursor.execute("SET GLOBAL sql_mode = 'ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH'")
        try:
            session = open_session(server)
        finally:
            cursor.execute("SET GLOBAL sql_mode = %s", (before,))
        with session:
            [table] = read_definitions(session, [schema])
            assert table.statement.startswith("CREATE TABLE `t` (")
            assert rows(session, f"SELECT CONCAT(id, '|') FROM {schema}.t") == [("x|",)]
        cursor.execute(f"DROP DATABASE {schema}")


def test_a_session_may_wait_and_read_for_long(database: DatabaseFixture) -> None:
    """Limits against forgotten sessions and slow queries would end a claim or a comparison."""
    limit = {"mysql": "max_execution_time", "mariadb": "max_statement_time"}[database.flavor.value]
    with database.connect() as root, root.cursor() as cursor:
        cursor.execute(f"SET GLOBAL wait_timeout = 30, GLOBAL {limit} = 1000")
        try:
            session = open_session(resharder_of(database, "-80"))
        finally:
            cursor.execute(f"SET GLOBAL wait_timeout = DEFAULT, GLOBAL {limit} = DEFAULT")
    with session:
        [(idle_s, limited)] = rows(session, f"SELECT @@wait_timeout, @@{limit}")
    assert (idle_s, limited) == (28_800, 0)
