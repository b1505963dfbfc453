"""System-versioned tables of MariaDB in second databases: the rows that a SELECT shows."""

from contextlib import ExitStack

import pytest

from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.postgres_servers import PostgresFixture
from tests.producers.copy.copying import start, wait_state
from tests.producers.session.producing import producing, settings_of
from tests.sinks.database.followed import Followed
from tests.sinks.database.mysql_targets import MysqlTargets
from tests.sinks.database.serving import create_databases, serve
from tests.sinks.database.verified import Verify, feeding
from tests.spark_consumers.versioned_tables import change_tables, present_rows, tables_for
from topics.progress.copy_topic import CopyState

pytestmark = pytest.mark.full


@pytest.mark.parametrize("is_copied", [False, True])
def test_second_databases_have_the_present_rows(
    start_mariadb: StartServer,
    kafka: KafkaCluster,
    keyspace: str,
    postgres: PostgresFixture,
    *,
    mysql_a: DatabaseFixture,
    mariadb_a: DatabaseFixture,
    is_copied: bool,
) -> None:
    """From the first change on, or from copies: `verify` finds no difference to the source."""
    source = start_mariadb()  # a target on the same server would follow itself
    shards = {"-": source}
    create_databases(shards, keyspace)
    serve(kafka, keyspace, shards)
    settings = settings_of(source, kafka, keyspace)
    targets = [
        Followed(server, follower=keyspace)
        for server in (postgres, MysqlTargets(mysql_a), MysqlTargets(mariadb_a))
    ]
    tables = tables_for(source)
    if is_copied:
        change_tables(source, keyspace)
    with ExitStack() as running:
        running.enter_context(producing(settings))
        for followed in targets:
            followed.database.prepare()
            running.enter_context(feeding(followed.database, keyspace, settings.kafka))
        if is_copied:
            places = [f"{keyspace}.{name}" for name in tables]
            start(settings, *places)
            wait_state(settings, CopyState.COMPLETED, *places)
        else:
            change_tables(source, keyspace)
        for followed in targets:
            verify = Verify(followed, [settings])
            verify.until_table([*tables][-1])
            found = verify()

            assert {name: each.named for name, each in found.items()} == dict.fromkeys(tables, ())
            for name in tables:
                on_mysql = isinstance(followed.server, MysqlTargets)
                place = name if on_mysql else f"{keyspace}.{name}"
                rows = sorted(followed.rows(f"SELECT id, v FROM {place}"))
                assert [tuple(row) for row in rows] == present_rows(source, keyspace, name), name
