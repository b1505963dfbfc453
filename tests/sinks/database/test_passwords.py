"""The password of a second database that is changed while tables follow."""

import sys
import threading
from pathlib import Path
from urllib.parse import quote

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import make_url

from databases.errors import LoginRefused
from event_token.errors import UsageError
from sinks.database.database import SqlDatabase
from sinks.database.options import DatabaseOptions
from sinks.database.urls import dialect_of
from spark_consumers import sink_query
from spark_consumers.database import run_database
from spark_consumers.sink_query import SinkProgress
from tests.sinks.database.followed import EVERYWHERE, TargetServer
from tests.spark_consumers.shop import Shop

CHANGED = "Another-Passw0rd"


class Account:
    """An account whose password is in a file, and in a command that prints the file."""

    def __init__(self, server: TargetServer, folder: Path) -> None:
        self._server = server
        self.database = server.new_database()
        self.user, password = server.new_login(self.database)
        self.file = folder / "password"
        self.file.write_text(password)
        self._plain = server.url(self.database, self.user, password)

    def url(self, **sources: str) -> str:
        """The URL of the database with these parameters, and without a password."""
        bare = self._plain.replace(f":{make_url(self._plain).password}@", "@")
        return f"{bare}?{'&'.join(f'{name}={quote(text)}' for name, text in sources.items())}"

    def change(self, to: str = CHANGED) -> None:
        """Change the password on the server, and end the account's sessions."""
        on_mysql = self._plain.startswith(("mysql", "mariadb"))
        account, by = f"ROLE {self.user}", "PASSWORD"
        if on_mysql:
            account, by = f"USER {self.user}@'%'", "IDENTIFIED BY"
        self._server.ask("mysql" if on_mysql else "postgres", f"ALTER {account} {by} '{to}'")
        self._server.end_sessions(self.user)


@EVERYWHERE
def test_a_password_is_read_at_each_connection(target_server: TargetServer, tmp_path: Path) -> None:
    """A changed one is a refused login until the file has it, also where the old one was kept."""
    account = Account(target_server, tmp_path)
    cat = f"cat '{account.file}'"
    options = DatabaseOptions("commerce")
    by_file = SqlDatabase(account.url(password_file=str(account.file)), options)
    by_command = SqlDatabase(account.url(password_command=cat, password_valid_s="3600"), options)
    by_file.prepare()
    assert by_command.held() is None

    account.change()
    old = account.file.read_text()
    for each in (by_file, by_command):
        with pytest.raises(LoginRefused) as raised:
            each.held()
        assert old not in str(raised.value)
    account.file.write_text(f"{CHANGED}\n")

    assert by_file.held() is None
    assert by_command.held() is None
    account.file.unlink()
    account.change("Third-Passw0rd")
    for each in (by_file, by_command):
        with pytest.raises(LoginRefused, match=f"{account.user}@.*: (cannot read|the command cat)"):
            each.held()


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ("password_file=/a&password_command=b", "has to come from one place"),
        ("password_valid_s=1", "has to come from one place"),
        ("password_file=relative", "name its whole path"),
        ("password_command=a&password_valid_s=soon", "not a number of seconds"),
    ],
)
def test_a_password_has_one_source(parameters: str, problem: str) -> None:
    """What a URL says of its password is checked before anything is connected."""
    with pytest.raises(UsageError, match=problem):
        dialect_of(f"postgresql://user@host/database?{parameters}")
    with pytest.raises(UsageError, match="one place"):
        dialect_of("mysql://user:secret@host/database?password_file=/a")


@pytest.mark.full
@pytest.mark.parametrize("target_server", ["mariadb_a"], indirect=True)
def test_a_query_waits_for_a_password_that_is_changed(
    spark: SparkSession,
    shop: Shop,
    target_server: TargetServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every change arrives once, though the login was refused in mid-run."""
    monkeypatch.setattr(sink_query, "RESTART_PAUSE_S", 0.2)
    account = Account(target_server, tmp_path)
    stop = threading.Event()
    refused: list[str] = []
    # Prints what is in the file, and counts.
    program = (
        f"import pathlib; open({str(tmp_path / 'runs')!r}, 'a').write('x'); "
        f"print(pathlib.Path({str(account.file)!r}).read_text())"
    )
    url = account.url(password_command=f'{sys.executable} -S -c "{program}"')
    original = sink_query._Run._watch

    def watch(run: "sink_query._Run", query: object) -> None:
        try:
            original(run, query)  # type: ignore[arg-type]
        except LoginRefused as error:
            refused.append(str(error))
            account.file.write_text(CHANGED)
            raise

    monkeypatch.setattr(sink_query._Run, "_watch", watch)

    def on_progress(progress: SinkProgress) -> None:
        if progress.rows >= 80:
            stop.set()
        elif progress.rows >= 40 and CHANGED not in account.file.read_text() and not refused:
            account.change()
            shop.write(20)

    shop.write(20)
    run_database(
        spark,
        shop.keyspace,
        url,
        str(tmp_path / "checkpoint"),
        shop.options(),
        DatabaseOptions(partitions=2),
        on_progress=on_progress,
        stop=stop,
        interval_s=0.2,
    )

    assert refused
    counted = target_server.ask(account.database, "SELECT changes FROM _shardstream.position")
    assert counted == [(80,)]
    assert target_server.ask(account.database, "SELECT count(*) FROM shop.orders") == [(80,)]
