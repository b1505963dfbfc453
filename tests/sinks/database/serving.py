"""A keyspace whose shards are real servers: its topology and its tables."""

from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.copy.traffic import TABLES, key_of
from tests.producers.session.producing import settings_of
from topics.kafka.provisioning import provision_keyspace
from topics.keyspace.topology import ShardEntry, ShardState, Topology, update_topology

# Traffic has lower keys.
FILLED_FROM = 300


def serve(kafka: KafkaCluster, keyspace: str, shards: dict[str, DatabaseFixture]) -> None:
    """A topology of these shards."""
    config = settings_of(next(iter(shards.values())), kafka, keyspace).kafka
    provision_keyspace(config, keyspace)
    entries = tuple(ShardEntry(shard, ShardState.SERVING) for shard in shards)
    topology = Topology(keyspace, 1, entries)
    update_topology(config, keyspace, lambda _: topology)


def create_databases(shards: dict[str, DatabaseFixture], name: str) -> None:
    """Create an empty database on all servers."""
    for database in shards.values():
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")


def fill(database: DatabaseFixture, name: str) -> None:
    """Create the tables of the traffic with rows of other keys."""
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        for table, (columns, key) in TABLES.items():
            cursor.execute(f"CREATE TABLE {table} ({columns}, v BIGINT, pad VARCHAR(200))")
            rows = ", ".join(
                f"({', '.join(key_of(table, i))}, {i}, 'there')"
                for i in range(FILLED_FROM, FILLED_FROM + 40)
            )
            cursor.execute(f"INSERT INTO {table} ({', '.join(key)}, v, pad) VALUES {rows}")
