"""System-versioned tables of MariaDB in second databases: the rows that a SELECT shows."""

from contextlib import ExitStack

import pytest

from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import StartServer
from tests.producers.copy.copying import start, wait_state
from tests.producers.session.producing import producing, settings_of
from tests.spark_consumers.second_database.followed import Followed, TargetServer
from tests.spark_consumers.second_database.mysql_targets import MysqlTargets
from tests.spark_consumers.second_database.serving import create_databases, serve
from tests.spark_consumers.second_database.verified import Verify, feeding
from tests.spark_consumers.versioned_tables import change_tables, present_rows, tables_for
from topics.progress.copy_topic import CopyState


@pytest.mark.parametrize("target_server", ["postgres", "mysql_a", "mariadb_a"], indirect=True)
@pytest.mark.parametrize("is_copied", [False, True])
def test_a_second_database_has_the_present_rows(
    start_mariadb: StartServer,
    kafka: KafkaCluster,
    keyspace: str,
    target_server: TargetServer,
    *,
    is_copied: bool,
) -> None:
    """From the first change on, or from copies: `verify` finds no difference to the source."""
    source = start_mariadb()  # a target on the same server would follow itself
    shards = {"-": source}
    create_databases(shards, keyspace)
    serve(kafka, keyspace, shards)
    settings = settings_of(source, kafka, keyspace)
    followed = Followed(target_server, follower=keyspace)
    followed.database.prepare()
    tables = tables_for(source)
    if is_copied:
        change_tables(source, keyspace)
    with ExitStack() as running:
        running.enter_context(producing(settings))
        running.enter_context(feeding(followed.database, keyspace, settings.kafka))
        if is_copied:
            places = [f"{keyspace}.{name}" for name in tables]
            start(settings, *places)
            wait_state(settings, CopyState.COMPLETED, *places)
        else:
            change_tables(source, keyspace)
        verify = Verify(followed, [settings])
        verify.until_table([*tables][-1])
        found = verify()

        assert {name: each.named for name, each in found.items()} == dict.fromkeys(tables, ())
        for name in tables:
            place = name if isinstance(target_server, MysqlTargets) else f"{keyspace}.{name}"
            rows = sorted(followed.rows(f"SELECT id, v FROM {place}"))
            assert [tuple(row) for row in rows] == present_rows(source, keyspace, name), name
