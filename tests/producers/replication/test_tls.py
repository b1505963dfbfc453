"""A whole producer over TLS, on both families; clear text is refused if TLS is required."""

from dataclasses import replace
from pathlib import Path

import pytest

from databases.connection import open_connection
from databases.errors import ServerRefused
from databases.server import TlsSettings
from databases.sql import rows
from shardstream.local.kafka_cluster import KafkaCluster
from tests.certificates import Certificates
from tests.database_servers import StartServer
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    RunningProducer,
    check_log,
    producing,
    read_log,
    replay,
    server_of,
    settings_of,
    table_rows,
    wait_caught_up,
)


@pytest.mark.parametrize("family", ["mysql", "mariadb"])
def test_producer_streams_over_verified_tls(
    request: pytest.FixtureRequest,
    family: str,
    kafka: KafkaCluster,
    keyspace: str,
    tmp_path: Path,
) -> None:
    """Small rows and one of many TLS records arrive; both connections are encrypted."""
    own = Certificates(tmp_path, "127.0.0.1")
    start: StartServer = request.getfixturevalue(f"start_{family}")
    enable = ("--ssl",) if family == "mariadb" else ()
    database = start(
        (*enable, f"--ssl-ca={own.ca}", f"--ssl-cert={own.cert}", f"--ssl-key={own.key}")
    )
    # The server refuses clear text, so the stream cannot have fallen back to it.
    statements(database, f"ALTER USER '{database.user}'@'127.0.0.1' REQUIRE SSL")
    name = database.new_database()
    clear = settings_of(database, kafka, keyspace)
    server = replace(server_of(database), tls=TlsSettings(own.ca))
    encrypted = replace(clear, servers=(server,))
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
        with producing(encrypted):
            for i in range(20):
                cursor.execute(f"INSERT INTO t VALUES ({i}, REPEAT('x', {i * 5_000}))")
            cursor.execute("INSERT INTO t VALUES (99, REPEAT('y', 2000000))")
            wait_caught_up(encrypted)
    log = read_log(encrypted)

    check_log(log)
    assert replay(log, name, "t") == table_rows(database, name, "t")
    connection = open_connection(server)
    try:
        assert rows(connection, "SHOW STATUS LIKE 'Ssl_cipher'")[0][1]
    finally:
        connection.close()
    assert isinstance(RunningProducer(clear).wait_error(), ServerRefused)
