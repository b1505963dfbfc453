"""A backlog on real servers: many transactions of a source become few of the target."""

from contextlib import ExitStack

from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.resharding.apply.test_applier import OneTable
from tests.resharding.shards import applying

ORDERS = 100


def commits(database: DatabaseFixture) -> int:
    """Count the COMMIT statements of a server."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Com_commit'")
        [(_, count)] = cursor.fetchall()
    return int(count)


def test_a_backlog_is_applied_in_few_transactions(
    either_servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """Swapped unique values, moved keys and rows that come back are the same, in few commits."""
    source, target, _ = either_servers
    with ExitStack() as stack:
        one = OneTable(stack, source, target, kafka, keyspace)
        one.run(
            source,
            *(f"INSERT INTO {{db}}.orders VALUES ({n}, {n}, 'c{n}')" for n in range(ORDERS)),
        )
        with applying(one.settings()) as applier:
            one.wait(applier)
        one.run(
            source,
            # Each takes the value of the next one, the last that of the first.
            "UPDATE {db}.orders SET code = NULL WHERE id = 0",
            *(f"UPDATE {{db}}.orders SET code = 'c{n - 1}' WHERE id = {n}" for n in range(1, 50)),
            "UPDATE {db}.orders SET code = 'c49' WHERE id = 0",
            "UPDATE {db}.orders SET id = id + 1000 WHERE id BETWEEN 50 AND 59",
            *(f"UPDATE {{db}}.orders SET user_id = 7 WHERE id = {n}" for n in range(60, 70)),
            "DELETE FROM {db}.orders WHERE id BETWEEN 65 AND 79",
            *(f"INSERT INTO {{db}}.orders VALUES ({n}, 8, 'c{n}')" for n in range(70, 75)),
        )
        one.sources.last_seqs()
        before = commits(target)
        with applying(one.settings()) as applier:
            one.wait(applier)
        assert commits(target) - before <= ORDERS // 5
        assert one.orders(target) == one.orders(source)
        assert len(one.orders(target)) == ORDERS - 10
