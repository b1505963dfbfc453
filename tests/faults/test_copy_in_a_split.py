"""A shard is split while its rows are still being copied, and everyone who copies is killed."""

from event_token import ShardName
from producers.settings import CopySettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.copy.copying import topics_of, wait_state
from tests.producers.servers.replication import statements
from tests.producers.session.producing import producing, settings_of, wait_caught_up
from tests.producers.session.workload import process
from tests.resharding.shards import (
    ApplierProcess,
    Sources,
    applier_settings,
    applying,
    begin,
    fresh_schema,
    wait_applied,
)
from tests.resharding.writers import make_tables, rows_of, vindexes_of, writing
from topics.progress.copy_topic import CopyAction, CopyRequest, CopyState, ask

# Beside the ids of the writers.
OLD_ID = 1_000_000
OLD_ROWS = 900
TARGET = "-80"


def test_kills_of_a_split_that_copies(
    mysql_a: DatabaseFixture, mysql_b: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F26: producer and applier die while a split copies rows; the target has exactly its part."""
    schema = fresh_schema()
    for database in (mysql_a, mysql_b):
        make_tables(database, schema)
    statements(
        mysql_a,
        f"INSERT INTO {schema}.orders WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL "
        f"SELECT i + 1 FROM n WHERE i < {OLD_ROWS}) SELECT {OLD_ID} + i, i, NULL, i, 'old' FROM n",
        f"INSERT INTO {schema}.sessions SELECT user_id, 'old', 1 FROM {schema}.orders",
    )
    settings = settings_of(mysql_a, kafka, keyspace, copy=CopySettings(chunk_rows_max=25))
    targets = {TARGET: mysql_b}
    tables = tuple(f"{schema}.{table}" for table in ("orders", "sessions"))
    with producing(settings) as producer:
        wait_caught_up(settings)
        sources = Sources(settings.kafka, keyspace, {"-": mysql_a}, {"-": producer})
        plan = sources.plan((TARGET, "80-"), vindexes_of(schema), agreed_seqs=sources.last_seqs())
    begin(plan, targets)
    ask(settings.kafka, topics_of(settings), CopyRequest(CopyAction.START, tables))
    target = applier_settings(plan, TARGET, mysql_b, sources)
    with writing({"-": mysql_a}, schema):
        for point in ("piece_written", "after_commit"):
            applier_process = ApplierProcess(target)
            try:
                with process(settings, point) as killed:
                    assert killed.wait() == -9, killed.lines[-3:]
            finally:
                applier_process.kill()
    with producing(settings) as producer, applying(target) as applier:
        wait_state(settings, CopyState.COMPLETED, *tables)
        sources.producers["-"] = producer
        wait_applied(sources, plan.reshard_id, targets, [applier])

    within = ShardName.parse(TARGET).key_range
    wanted = rows_of({"-": mysql_a}, schema, within=within)
    assert len(wanted["orders"]) > OLD_ROWS // 4
    assert rows_of(targets, schema) == wanted
