"""Servers that take names of tables in any case."""

import pytest

from producers.copy.definition import CannotCopy, read_definition
from producers.typed_columns import BYTES, TypedColumns
from shardstream.local.kafka_cluster import KafkaCluster
from sinks.rule.statements import Effect, TableName, column_renames, effect_of
from tests.database_servers import StartServer
from tests.producers.session.producing import (
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)

STATEMENTS = (
    "CREATE TABLE Orders (Id INT PRIMARY KEY, Note VARCHAR(9) COMMENT 'The Table Orders')",
    "INSERT INTO ORDERS VALUES (1, 'One')",
    "TRUNCATE TABLE Orders",
    "TRUNCATE `{DB}`.ORDERS -- All Of Them",
    "SET STATEMENT lock_wait_timeout = 50 FOR TRUNCATE Orders",
    "ALTER TABLE Orders CHANGE COLUMN Note Remark VARCHAR(9)",
    "ALTER TABLE IF EXISTS {DB}.Orders DROP PRIMARY KEY, ADD PRIMARY KEY (Id)",
    "CREATE OR REPLACE TABLE ORDERS (Id INT PRIMARY KEY)",
    "RENAME TABLE Orders TO {DB}.Table",
    "ALTER TABLE `Table` RENAME TO Older, RENAME COLUMN Id TO `Key`",
    "DROP TABLE OLDER",
    "DROP DATABASE {DB}",
)


def test_definitions_name_tables_as_rows_do(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """A14: TRUNCATE Orders is about the rows of orders, on a server with names in lower case."""
    server = start_mariadb(("--lower-case-table-names=1",))
    settings = settings_of(server, kafka, keyspace, typed_columns=TypedColumns({"/.*/": BYTES}))
    name = server.new_database()

    with producing(settings), server.connect(database=name.upper()) as connection:
        with connection.cursor() as cursor:
            for statement in STATEMENTS:
                cursor.execute(statement.format(DB=name.upper()))
                if statement is STATEMENTS[1]:
                    # Rows of a copy must not have another table's name either.
                    with pytest.raises(CannotCopy, match=f"{name}.Orders is {name}.orders on"):
                        read_definition(connection, settings, name, "Orders")
        wait_caught_up(settings)

    events = read_log(settings).events
    orders, moved, older = (TableName(name, table) for table in ("orders", "table", "older"))
    texts = [(event.statement or "", event.database) for event in events if not event.table]
    renamed = [(r.table, r.old, r.new) for text in texts for r in column_renames(*text)]
    assert [event.table for event in events if event.table] == ["orders"]
    assert texts[0][0] == STATEMENTS[0].replace("Orders", "orders", 1)
    assert [effect_of(*text) for text in texts] == [
        Effect(),
        *(3 * [Effect(emptied=(orders,))]),
        Effect(),
        Effect(changed=(orders,)),
        Effect(emptied=(orders,)),
        Effect(changed=(orders, moved), received=((orders, moved),)),
        Effect(changed=(moved, older), received=((moved, older),)),
        Effect(emptied=(older,)),
        Effect(emptied=(TableName(name, None),)),
    ]
    assert renamed == [(orders, "Note", "Remark"), (moved, "Id", "Key")]
