"""One MySQL transaction that is larger than the memory of its producer."""

from pathlib import Path

from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import ProducerProcess, settings_of, wait_caught_up
from topics.kafka.partition_reader import read_to_end
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.records.envelope import read_envelope
from topics.schemas import open_schema_ids

ROWS = 150_000
ROW_BYTES = 2_400  # 360 MB in all
RSS_KB_MAX = 300 * 1024


def peak_rss_kb(pid: int) -> int:
    """Return the peak resident memory of the process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError(f"no VmHWM for process {pid}")


def test_a_transaction_larger_than_its_bound_of_memory_streams_through(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """F19: The rows arrive in one Kafka transaction, and the process stays below 300 MB."""
    name = mysql_a.new_database()
    settings = settings_of(mysql_a, kafka, keyspace)
    topics = ShardTopics(keyspace, settings.shard)
    with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(2500))")
        cursor.execute(f"SET SESSION cte_max_recursion_depth = {ROWS}")
        producer = ProducerProcess(settings)
        try:
            producer.wait_line("streaming")
            cursor.execute(
                "INSERT INTO t WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n "
                f"WHERE i < {ROWS}) SELECT i, CONCAT(REPEAT('x', {ROW_BYTES}), i) FROM n"
            )
            wait_caught_up(settings)
            peak_kb = peak_rss_kb(producer.pid)
            status = producer.end()
        finally:
            producer.kill()
    seqs = []
    for record in read_to_end(settings.kafka, topics.log):
        assert record.value is not None
        _, seq, _, last = read_envelope(record.value)
        seqs.append(seq)
    schema_ids = open_schema_ids(settings.kafka, None)
    batches = [
        progress
        for record in read_to_end(settings.kafka, topics.progress)
        if (progress := decode_progress(record.value, schema_ids)).ticks
    ]

    assert seqs == list(range(1, ROWS + 1))
    assert last
    assert [(b.first_seq, b.last_seq) for b in batches] == [(1, ROWS)]
    assert batches[0].end_offset == ROWS
    assert status == 0
    assert peak_kb < RSS_KB_MAX, f"{peak_kb} KB"
