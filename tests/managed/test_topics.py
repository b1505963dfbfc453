"""Topics where a service decides which settings there are."""

import random
from pathlib import Path

import pytest

from event_token.errors import UsageError
from tests.database_servers import StartServer
from tests.managed.kafka_services import (
    MIB,
    MSK_SERVERLESS,
    ManagedCluster,
    check_topics,
    provision_all,
    started,
)
from tests.producers.servers.replication import statements
from tests.producers.session.producing import producing, read_log, settings_of, wait_caught_up
from topics.errors import WrongTopic
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.provisioning import provision_keyspace
from topics.names import topology_topic

pytestmark = pytest.mark.full

# Beyond the largest record of confluent-dedicated.
DEDICATED_LARGE_BYTES = 24 * MIB


@pytest.mark.parametrize("service", ["confluent-dedicated"], indirect=True)
def test_rows_go_through_the_topics_that_a_service_allows(
    service: tuple[str, ManagedCluster], start_mysql: StartServer, keyspace: str
) -> None:
    """What is refused is left out and named; a row beyond the largest record goes in parts."""
    name, cluster = service
    database = start_mysql(("--max-allowed-packet=64M",))
    schema = database.new_database()
    settings = settings_of(database, cluster, keyspace)
    provision_all(settings)
    text = random.Random(1).randbytes(DEDICATED_LARGE_BYTES // 2).hex()

    with producing(settings):
        statements(
            database,
            f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v LONGTEXT)",
            f"INSERT INTO {schema}.t VALUES (1, ''), (2, '{text}')",
        )
        wait_caught_up(settings)
    with producing(settings):  # the topics that exist now are taken as they are
        statements(database, f"INSERT INTO {schema}.t VALUES (3, '')")
        wait_caught_up(settings)

    log = read_log(settings)
    rows = [tuple(event.after.values()) for event in log.events if event.after]
    is_same = rows == [(1, ""), (2, text), (3, "")]
    assert is_same  # to print how such rows differ takes minutes
    [large] = (each for progress in log.progress for each in progress.in_parts)
    assert large.parts > 1
    check_topics(name, settings)


def test_a_service_without_what_is_required_is_refused(
    jars: Path, tmp_path: Path, keyspace: str
) -> None:
    """Where even the required settings are refused, the service's own sentence is shown."""
    limits = MSK_SERVERLESS | {"managed.allowed": "retention.ms"}
    for cluster in started(tmp_path / "kafka", jars, limits):
        config = ClientConfig({"bootstrap.servers": cluster.bootstrap_servers})

        with pytest.raises(UsageError, match=r"POLICY_VIOLATION.*configuration is not supported"):
            provision_keyspace(config, keyspace)


def test_a_service_of_small_records_is_refused_before_a_topic_is_created(
    jars: Path, tmp_path: Path, keyspace: str
) -> None:
    """Kafka's default is a byte too small, and the service allows no more: one sentence."""
    limits = MSK_SERVERLESS | {"managed.bytes.max": str(MIB)}
    for cluster in started(tmp_path / "kafka", jars, limits):
        config = ClientConfig({"bootstrap.servers": cluster.bootstrap_servers})

        with pytest.raises(WrongTopic, match="bytes 1048588, and refuse 1048589"):
            provision_keyspace(config, keyspace)
        assert topology_topic(keyspace) not in open_admin(config).list_topics().topics
