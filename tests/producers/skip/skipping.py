"""What the tests of skips share: statements, the commands of messages, and what a log has."""

import re
from collections.abc import Sequence
from typing import Any

from producers.settings import ShardProducerSettings
from tests.database_servers import DatabaseFixture
from topics.records.vevent import EventType


def run(database: DatabaseFixture, name: str, *texts: str) -> None:
    """Run statements as root in one session, which may begin with its own settings."""
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        for text in texts:
            cursor.execute(text)


def named_gtid(error: BaseException, settings: ShardProducerSettings) -> str:
    """Return the GTID in the command that a message names."""
    found = re.search(rf"shardstream skip {settings.keyspace} - --gtid (\S+) --reason", str(error))
    assert found is not None, str(error)
    return found[1]


def ids(events: Sequence[Any]) -> list[object]:
    """Return the ids of inserted rows, and the SKIPs between them."""
    wanted = [e for e in events if e.type in {EventType.ROW, EventType.SKIP}]
    return ["skip" if e.type is EventType.SKIP else e.after["id"] for e in wanted]
