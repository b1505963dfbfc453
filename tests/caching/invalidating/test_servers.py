"""An invalidator behind real producers and database servers of both families."""

import pytest

from caching.key_map import KeyMap
from shardstream.local.kafka_cluster import KafkaCluster
from tests.caching.invalidating.invalidating import Client, invalidating
from tests.caching.stores.opened import open_memory
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import producing, read_log, settings_of, wait_caught_up
from tests.topics.shard_writer import provision
from tests.waiting import wait_for
from topics.records.vevent import EventType

pytestmark = pytest.mark.full


def test_rows_and_ddl_of_a_server(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """R01, R26: a row's change removes its values, a TRUNCATE takes all of them out of use."""
    name = database.new_database()
    settings = settings_of(database, kafka, keyspace)
    provision(settings.kafka, keyspace, ["-"])
    keys = KeyMap()
    keys.of(f"{name}.users")(lambda row: [f"user:{row['id']}", f"email:{row['email']}"])
    memory = open_memory()
    client = Client(memory)
    with (
        database.connect(database=name) as connection,
        connection.cursor() as cursor,
        producing(settings),
    ):
        cursor.execute("CREATE TABLE users (id INT PRIMARY KEY, email VARCHAR(99))")
        cursor.execute("INSERT INTO users VALUES (1, 'a'), (2, 'b')")
        wait_caught_up(settings)
        with invalidating(settings.kafka, keyspace, memory.more_floors, keys=keys) as running:
            [*_, read] = [e.token for e in read_log(settings).events if e.type is EventType.ROW]
            names = ["user:1", "email:a", "email:c", "user:2"]
            client.make_floors(*names)
            assert all(client.fill(each, read) for each in names)
            cursor.execute("UPDATE users SET email = 'c' WHERE id = 1")
            wait_for("the values go", lambda: not any(map(client.hit, names[:3])))
            assert client.hit("user:2")
            assert not client.fill("email:a", read)
            cursor.execute("TRUNCATE TABLE users")
            wait_for("all values go", lambda: not client.hit("user:2"))
            wait_for("it is told", lambda: running.says("DDL on a mapped table"))
            assert not client.fill("user:2", read)
