"""Foreign keys whose changes no binlog has, declared while a producer runs."""

from producers.decoder import UnloggedCascade
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import StartServer
from tests.producers.servers.replication import statements
from tests.producers.session.producing import RunningProducer, settings_of


def test_a_new_cascade_stops_the_producer(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """A cascading key declared after the start stops the shard at its statement."""
    mariadb = start_mariadb()
    settings = settings_of(mariadb, kafka, keyspace, accept_unlogged_cascades=False)
    producer = RunningProducer(settings)
    producer.wait_streaming()
    name = mariadb.new_database()
    statements(
        mariadb,
        f"CREATE TABLE {name}.p (id INT PRIMARY KEY)",
        f"CREATE TABLE {name}.c (id INT PRIMARY KEY, p INT, "
        f"FOREIGN KEY (p) REFERENCES {name}.p (id) ON DELETE CASCADE)",
        f"DROP DATABASE {name}",
    )

    error = producer.wait_error()

    assert isinstance(error, UnloggedCascade)
    assert "set accept_unlogged_cascades = true" in str(error)
