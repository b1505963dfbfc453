"""A real PgBouncer before a PostgreSQL server."""

from pathlib import Path

from shardstream.local.fetching import own_loader, quiet, unpacked
from shardstream.local.local_server import LocalServer, answers
from shardstream.local.postgres_server import not_as_root
from tests.postgres_servers import PostgresFixture

PACKAGE = "pgbouncer"
CONFIG = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = {mode}
ignore_startup_parameters = options
"""


class PgBouncer(LocalServer):
    """Gives each transaction, or each client, a session of a pool; start options are dropped."""

    ready_s_max = 120.0
    ready_poll_s = 0.05
    kind = "pgbouncer"

    def __init__(self, folder: Path, postgres: PostgresFixture, mode: str) -> None:
        """`mode`: "session" or "transaction"."""
        super().__init__(folder, die_with_parent=True)
        self._postgres = postgres
        self._mode = mode
        self._users: dict[str, str] = {}

    def allow(self, user: str, password: str) -> None:
        """Let an account in; before the start."""
        self._users[user] = password

    def launch(self) -> None:
        """Start without waiting."""
        root = unpacked(PACKAGE, PACKAGE, lambda _: None, quiet)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._choose_ports(1)
        users, config = self.folder / "users.txt", self.folder / "pgbouncer.ini"
        users.write_text("".join(f'"{name}" "{text}"\n' for name, text in self._users.items()))
        at = self._postgres
        config.write_text(
            CONFIG.format(host=at.host, port=at.port, own=self.port, users=users, mode=self._mode)
        )
        program = root / "usr/sbin/pgbouncer"
        self._process.launch([*not_as_root(), *own_loader(root), str(program), str(config)])

    def serves(self) -> bool:
        """Whether it takes connections."""
        return answers(self.port)

    def url(self, database: str, user: str) -> str:
        """The URL of a database through the pooler."""
        return f"postgresql://{user}:{self._users[user]}@{self.host}:{self.port}/{database}"
