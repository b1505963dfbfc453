"""What `shardstream local sql` prints."""

from io import StringIO

from rich.console import Console

from shardstream.local.sql import run_sql
from tests.database_servers import DatabaseFixture


def test_null_is_printed_as_sql_writes_it(mysql_a: DatabaseFixture) -> None:
    """NULL is told from the text 'None'."""
    printed = StringIO()

    run_sql(mysql_a.server, "SELECT NULL AS a, 'None' AS b", Console(file=printed))

    assert [word for word in printed.getvalue().split() if word.isalpha()][2:] == ["NULL", "None"]
