"""What the tests of skips share: statements, the commands of messages, and what a log has."""

import re
from collections.abc import Sequence
from typing import Any

from producers.settings import ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import (
    SHARD,
    WrittenLog,
    check_log,
    check_progress,
    producing,
    read_log,
    settings_of,
    wait_caught_up,
)
from tests.topics.shard_writer import provision
from topics.records.vevent import EventType


def run(database: DatabaseFixture, name: str, *texts: str) -> None:
    """Run statements as root in one session, which may begin with its own settings."""
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        for text in texts:
            cursor.execute(text)


def begin_log(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str, *texts: str
) -> tuple[str, ShardProducerSettings]:
    """Run statements in a new schema, and begin a log that has read them."""
    name = database.new_database()
    settings = settings_of(database, kafka, keyspace)
    provision(settings.kafka, keyspace, [SHARD])
    run(database, name, *texts)
    with producing(settings):
        wait_caught_up(settings)
    return name, settings


def checked_log(settings: ShardProducerSettings) -> WrittenLog:
    """Return the log, of which records and progress are as they must be."""
    log = read_log(settings)
    check_log(log)
    check_progress(log)
    return log


def named_gtid(error: BaseException, settings: ShardProducerSettings) -> str:
    """Return the GTID in the command that a message names."""
    found = re.search(rf"shardstream skip {settings.keyspace} - --gtid (\S+) --reason", str(error))
    assert found is not None, str(error)
    return found[1]


def ids(events: Sequence[Any]) -> list[object]:
    """Return the ids of inserted rows, and the SKIPs between them."""
    wanted = [e for e in events if e.type in {EventType.ROW, EventType.SKIP}]
    return ["skip" if e.type is EventType.SKIP else e.after["id"] for e in wanted]
