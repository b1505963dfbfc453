"""Sessions of a reshard on real servers."""

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
