"""The PostgreSQL server behind the fixture is real and keeps what it committed."""

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from shardstream.local import postgres_server
from shardstream.local.postgres_server import PostgresServer
from tests.postgres_servers import PostgresFixture, running_postgres
from tests.waiting import wait_for

PARENT = """
import os, signal, sys
from pathlib import Path
from shardstream.local.postgres_server import PostgresServer

server = PostgresServer(Path(sys.argv[1]), password="secret", die_with_parent=True)
server.start()
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_committed_rows_survive_stop_and_kill(real_servers: None, tmp_path: Path) -> None:
    """A server that is stopped while a client is connected, or killed, has its rows afterwards."""
    server = PostgresServer(tmp_path / "pg", password="secret", die_with_parent=True)
    for postgres in running_postgres(server):
        with postgres.connect() as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
            connection.execute("INSERT INTO t VALUES (1)")
            server.stop()
        server.start()
        with postgres.connect() as connection:
            connection.execute("INSERT INTO t VALUES (2)")
            server.kill()
        server.start()
        with postgres.connect() as connection:
            assert connection.execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (2,)]


def test_accounts_need_their_passwords(postgres: PostgresFixture) -> None:
    """A wrong password is refused, over the same loopback on which everything else connects."""
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        postgres.connect(password=secrets.token_hex(4))


def test_server_dies_with_its_parent(real_servers: None, tmp_path: Path) -> None:
    """A killed test run leaves no server behind, although root runs it as another user."""
    command = [sys.executable, "-c", PARENT, str(tmp_path / "pg")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    pid = int(done.stdout)

    wait_for("it is gone", lambda: not _runs(pid))
    assert done.returncode == -signal.SIGKILL


@pytest.mark.full
def test_unpacked_server_runs_by_its_own_loader(
    real_servers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without PostgreSQL the one of Debian's packages is unpacked and used."""
    monkeypatch.setattr(postgres_server, "INSTALLED", tmp_path / "none")
    monkeypatch.setattr("shutil.which", _without_postgres)
    server = PostgresServer(tmp_path / "pg", password="secret", die_with_parent=True)
    for postgres in running_postgres(server):
        with postgres.connect() as connection:
            found = connection.execute("SHOW server_version_num").fetchone()
    assert found is not None
    assert int(found[0]) // 10_000 == 15


def _without_postgres(program: str) -> str | None:
    folders = os.get_exec_path()
    found = (Path(folder) / program for folder in folders if program != "postgres")
    return next((str(path) for path in found if path.exists()), None)


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
