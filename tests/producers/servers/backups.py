"""A server of MariaDB that is made from a backup of another one, by MariaDB's own tools."""

import subprocess
from pathlib import Path

from databases.sql import rows
from tests.database_servers import DatabaseFixture
from tests.producers.servers.replication import statements

TOOL_S_MAX = 120.0


def _tool(database: DatabaseFixture, name: str, *arguments: str) -> list[str]:
    """The command of a client that lies beside the server's binary, as root over TCP."""
    program = Path(database.server.binaries().server[0]).with_name(name)
    who = (f"--host={database.host}", f"--port={database.port}", f"--user={database.root_user}")
    return [str(program), "--no-defaults", "--protocol=TCP", "--skip-ssl", *who, *arguments]


def restore(source: DatabaseFixture, target: DatabaseFixture, *schemas: str) -> str:
    """Load what mariadb-dump reads of the source's schemas; return the target's gtid_slave_pos.

    The dump sets it, as it does for every replica that is built this way.
    """
    options = ("--single-transaction", "--master-data", "--gtid", "--databases", *schemas)
    dump = subprocess.run(
        _tool(source, "mariadb-dump", *options), capture_output=True, check=True, timeout=TOOL_S_MAX
    )
    subprocess.run(
        _tool(target, "mariadb", "--init-command=SET SESSION sql_log_bin = 0"),
        input=dump.stdout,
        capture_output=True,
        check=True,
        timeout=TOOL_S_MAX,
    )
    with target.connect() as connection:
        return str(rows(connection, "SELECT @@GLOBAL.gtid_slave_pos")[0][0])


def write_domain(database: DatabaseFixture, domain: int, *texts: str) -> None:
    """Run statements, a transaction each, in a domain of their own."""
    statements(database, f"SET SESSION gtid_domain_id = {domain}", *texts)
