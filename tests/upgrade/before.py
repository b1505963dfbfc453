"""What an earlier version has left behind, recorded once: its Kafka topics, servers, checkpoints.

`recorded/record.txt` is the program that recorded it, with that version's own code, and says how.
"""

import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture

RECORDED = Path(__file__).parent / "recorded" / "before.tar.xz"
# As `record.txt` names them.
KEYSPACE, PLAIN, MARIA, SCHEMA, RESHARD = "shop", "plain", "maria", "store", "split"
TARGETS = ("-80", "80-")


@dataclass(frozen=True)
class Before:
    """The broker on the recorded files, and the rest of what was recorded.

    `delivered`: shard and seq of the events that a Subscriber had given out up to `position`.
    `last_seqs`: by log. `changelog`: a Delta table; its checkpoint lies beside it.
    """

    kafka: KafkaCluster
    changelog: Path
    position: str
    delivered: list[tuple[str, int]]
    last_seqs: Mapping[str, int]
    servers: Mapping[str, Any]

    def restore(self, name: str, database: DatabaseFixture) -> None:
        """Give a new server the tables and the GTID set of a recorded one, as a backup does."""
        dumped = self.servers[name]
        with database.connect() as connection, connection.cursor() as cursor:
            if database.flavor == "mysql":
                cursor.execute("RESET BINARY LOGS AND GTIDS")
                cursor.execute("SET GLOBAL gtid_purged = %s", (dumped["gtids"],))
            else:
                cursor.execute("RESET MASTER")
                cursor.execute("SET GLOBAL gtid_binlog_state = %s", (dumped["gtids"],))
            cursor.execute("SET sql_log_bin = 0")
            cursor.execute("SET time_zone = '+00:00'")
            for statement in dumped["statements"]:
                cursor.execute(statement)


def unpack(folder: Path) -> Before:
    """Unpack into an empty folder; the broker is not started."""
    with tarfile.open(RECORDED) as packed:
        packed.extractall(folder, filter="data")
    state = json.loads((folder / "state.json").read_text("utf-8"))
    return Before(
        KafkaCluster(folder / "kafka", die_with_parent=True),
        folder / "log",
        state["position"],
        [(shard, seq) for shard, seq in state["delivered"]],
        state["last_seqs"],
        state["servers"],
    )
