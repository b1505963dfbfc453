"""Records the golden messages, when run as a program.

Starts MySQL, Kafka and Debezium 3.6 under Kafka Connect once per run, executes `golden/case.sql`
and writes the payloads of all messages, and the schemas of each table, to `golden/`.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

from benchmarks.debezium import Debezium, Endpoints
from shardstream.local.database_server import NOT_DURABLE, MysqlServer
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import own_account
from tests.sinks.table_topics.envelope.golden_cases import GOLDEN, RUNS, case_statements

DATABASE = "golden"
# Written after all others: its message ends a run.
LAST_TABLE = "finished"
RUN_S_MAX = 180.0
_HEADERS = {"__debezium.newkey", "__debezium.oldkey"}
_CONNECTOR = """\
topic.prefix={run}
database.include.list={database}
schema.history.internal.kafka.topic={run}.history
tombstones.on.delete=true
bigint.unsigned.handling.mode=precise
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable=true
value.converter.schemas.enable=true
"""


def execute(server: MysqlServer, statements: tuple[str, ...]) -> None:
    """Run statements in UTC."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone='+00:00'")
        for statement in statements:
            cursor.execute(statement)


def read_topics(cluster: KafkaCluster, run: str) -> list[dict[str, Any]]:
    """Read all messages of a run's tables, in the order of topics and offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "x",
            "enable.auto.commit": False,
        }
    )
    found = []
    prefix = f"{run}.{DATABASE}."
    for topic in sorted(t for t in consumer.list_topics().topics if t.startswith(prefix)):
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0))
        consumer.assign([TopicPartition(topic, 0, 0)])
        for _ in range(end):
            message = consumer.poll(RUN_S_MAX)
            assert message is not None
            assert message.error() is None
            found.append(_parsed(topic.removeprefix(prefix), message))
    consumer.close()
    return found


def _parsed(table: str, message: Message) -> dict[str, Any]:
    value = message.value()
    headers: Any = message.headers() or []
    return {
        "table": table,
        "key": json.loads(message.key() or b""),
        "value": None if value is None else json.loads(value),
        "headers": {name: text.decode() for name, text in headers if name in _HEADERS},
    }


def record(server: MysqlServer, cluster: KafkaCluster, run: str, more: str, folder: Path) -> None:
    """Run the case under Debezium and write its messages."""
    execute(server, (f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}"))
    execute(server, (f"CREATE TABLE {DATABASE}.started (id INT PRIMARY KEY AUTO_INCREMENT)",))
    debezium = Debezium(
        folder / run,
        Endpoints(server, cluster.bootstrap_servers),
        more_connector=_CONNECTOR.format(run=run, database=DATABASE) + more,
    )
    debezium.start()
    try:
        deadline = time.monotonic() + RUN_S_MAX
        while not any(m["table"] == "started" for m in read_topics(cluster, run)):
            debezium.check_alive()
            assert time.monotonic() < deadline
            execute(server, (f"INSERT INTO {DATABASE}.started () VALUES ()",))
            time.sleep(1)
        execute(server, (f"USE {DATABASE}", *case_statements()))
        execute(server, (f"CREATE TABLE {DATABASE}.{LAST_TABLE} (id INT PRIMARY KEY)",))
        execute(server, (f"INSERT INTO {DATABASE}.{LAST_TABLE} VALUES (1)",))
        while not any(m["table"] == LAST_TABLE for m in read_topics(cluster, run)):
            debezium.check_alive()
            assert time.monotonic() < deadline
            time.sleep(1)
        write(
            run, [m for m in read_topics(cluster, run) if m["table"] not in {"started", LAST_TABLE}]
        )
    finally:
        debezium.kill()


def write(run: str, messages: list[dict[str, Any]]) -> None:
    """Write payloads line by line, and the schemas of each table once."""
    schemas: dict[str, Any] = {}
    lines = []
    for message in messages:
        value = message["value"]
        of_table = schemas.setdefault(message["table"], {"key": message["key"]["schema"]})
        if value is not None:
            assert of_table.setdefault("value", value["schema"]) == value["schema"]
        lines.append(
            {
                **message,
                "key": message["key"]["payload"],
                "value": None if value is None else value["payload"],
            }
        )
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (GOLDEN / f"{run}.jsonl").write_text(text, "utf-8")
    text = "".join(
        json.dumps({"table": table, **found}, ensure_ascii=False) + "\n"
        for table, found in schemas.items()
    )
    (GOLDEN / f"{run}.schemas.jsonl").write_text(text, "utf-8")


def main() -> None:
    """Record all runs."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        server = MysqlServer(
            folder / "mysql",
            server_id=9777,
            account=own_account(),
            extra_args=NOT_DURABLE,
            die_with_parent=True,
        )
        cluster = KafkaCluster(folder / "kafka", brokers=1, die_with_parent=True)
        try:
            server.start()
            cluster.start()
            for run, golden in RUNS.items():
                record(server, cluster, run, golden.connector, folder)
        finally:
            server.kill()
            cluster.kill()


if __name__ == "__main__":
    main()
