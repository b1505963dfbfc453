"""The same binlog, decoded by the library mysql-replication."""

from typing import Any

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from tests.database_servers import DatabaseFixture


def binlog_end(database: DatabaseFixture) -> tuple[str, int]:
    """The file and position at which the server's binlog ends."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        row = cursor.fetchone()
        assert row is not None
        return str(row[0]), int(row[1])


def images_by_mysql_replication(
    database: DatabaseFixture, name: str, file: str, position: int
) -> Any:
    """Pairs of images of all changes in a schema behind a place in the binlog."""
    reader = BinLogStreamReader(
        connection_settings={
            "host": database.host,
            "port": database.port,
            "user": database.user,
            "passwd": database.password,
            "read_timeout": 30,
        },
        server_id=71_000,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_schemas=[name],
        # By file, for it cannot ask for a position with tagged GTIDs in it.
        resume_stream=True,
        log_file=file,
        log_pos=position,
    )
    try:
        for event in reader:
            for row in event.rows:
                if isinstance(event, UpdateRowsEvent):
                    yield row["before_values"], row["after_values"]
                elif isinstance(event, DeleteRowsEvent):
                    yield row["values"], None
                else:
                    yield None, row["values"]
    finally:
        reader.close()
