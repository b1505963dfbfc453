"""Tasks that write table topics, by hand: rows are named by shard and seq."""

from collections.abc import Iterator
from dataclasses import dataclass

from event_token.position import ShardPosition, StreamPosition
from sinks.resume import PlannedBatch
from sinks.table_topics.batch_writer import (
    BatchPlan,
    Message,
    Output,
    TaskIdentity,
    write_batch,
)
from sinks.table_topics.positions import Owner
from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import await_readable, read_to_end

TABLE = "shop.orders"
PARTITIONS = 2


def position(**seqs: int) -> StreamPosition:
    """A position of shards named by letters."""
    return StreamPosition(0, 0, {s: ShardPosition(n, n, None) for s, n in seqs.items()})


@dataclass(frozen=True, slots=True)
class TopicTask:
    """One task of a keyspace, of a run of some generation."""

    config: ClientConfig
    keyspace: str
    task: int = 0
    generation: int = 1
    tasks: int = 1
    tables: tuple[str, ...] = ()

    @property
    def topic(self) -> str:
        """The only topic that it writes."""
        return f"{self.keyspace}.{TABLE}"

    @property
    def identity(self) -> TaskIdentity:
        """Who it is."""
        owner = Owner(
            *(self.generation, f"run {self.generation}", self.tasks, PARTITIONS), tables=self.tables
        )
        return TaskIdentity(self.config, self.keyspace, self.keyspace, self.task, owner)

    def write(
        self,
        start: StreamPosition,
        end: StreamPosition,
        *,
        is_first: bool = False,
        batch_id: int = 0,
    ) -> int:
        """Write the batch between two positions; each row is one message of the key `<shard>`."""

        def output(plan: BatchPlan, moves: tuple[object, ...]) -> Output:
            return Output(self._messages(start, end, plan), lambda: moves)

        number = batch_id if is_first else max(batch_id, 1)
        batch = PlannedBatch("query", number, start, end)
        return write_batch(self.identity, batch, output)

    def _messages(
        self, start: StreamPosition, end: StreamPosition, plan: BatchPlan
    ) -> Iterator[Message]:
        for shard, at in start.shards.items():
            for seq in range(at.seq + 1, end.shards[shard].seq + 1):
                if seq > plan.written.get(shard, 0):
                    yield Message(self.topic, shard.encode(), str(seq).encode(), [])


def committed(config: ClientConfig, topic: str) -> dict[str, list[int]]:
    """The seqs that a read_committed consumer sees, by key and in order."""
    found: dict[str, list[int]] = {}
    for partition in range(PARTITIONS):
        await_readable(config, topic, partition)
        for record in read_to_end(config, topic, partition=partition):
            assert record.key is not None
            assert record.value is not None
            found.setdefault(record.key.decode(), []).append(int(record.value))
    return found
