"""Two shards of one keyspace: two servers with a producer each."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from benchmarks.binlog_fill import create_table, executed_set, fill
from benchmarks.our_producer import BenchKeyspace, OurProducer
from benchmarks.stack import Stack
from benchmarks.workloads import Workload
from event_token.errors import Halt
from shardstream.local.kafka_cluster import KafkaCluster
from topics.kafka.partition_reader import read_tail
from topics.progress.codec import decode_progress
from topics.schemas import open_schema_ids

SHARDS = ("-80", "80-")
# Catching up with a million rows takes seconds; after this time a producer hangs.
WAIT_S_MAX = 240.0
POLL_S = 0.1


class TwoShards:
    """The producers of both shards, from the current position; killed at the end."""

    def __init__(self, stack: Stack, keyspace: str, kafka: KafkaCluster | None = None) -> None:
        """Start the servers and create the topics; the producers start with the context.

        `kafka`: None for the one broker of the stack.
        """
        self.keyspace = keyspace
        self.servers = [stack.mysql(index) for index in range(len(SHARDS))]
        self._keyspace = BenchKeyspace(
            stack.folder,
            keyspace,
            (kafka or stack.kafka()).bootstrap_servers,
            dict(zip(SHARDS, self.servers, strict=True)),
        )
        self.client = self._keyspace.client
        self.settings = self._keyspace.settings
        self._producers = [
            OurProducer(self._keyspace, shard, start=f"gtid:{executed_set(server)}")
            for shard, server in zip(SHARDS, self.servers, strict=True)
        ]

    @classmethod
    def filled(cls, stack: Stack, keyspace: str, workload: Workload) -> Self:
        """Return two logs that hold a workload each; the producers have ended.

        Both are filled at the same time, so that there is something to merge.
        """
        for index in range(len(SHARDS)):
            create_table(stack.mysql(index), workload)
        shards = cls(stack, keyspace)
        with shards, ThreadPoolExecutor(len(SHARDS)) as pool:
            list(pool.map(lambda server: fill(server, workload), shards.servers))
            # Now the frontier is past every row.
            shards.wait_for_heads(time.time_ns() // 1000)
        shards.check_rows(workload.transactions * workload.rows_per_transaction)
        return shards

    def __enter__(self) -> Self:
        """Start both producers."""
        try:
            for producer in self._producers:
                producer.start()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        if exc_info[0] is None:
            for producer in self._producers:
                producer.stop()
        self._kill()

    def wait_for_heads(self, time_us: int) -> None:
        """Wait until both heads (watermarks) have reached `time_us`.

        Raises Halt if a producer has ended or a head does not advance.
        """
        deadline = time.monotonic() + WAIT_S_MAX
        schema_ids = open_schema_ids(self.client, None)
        for producer in self._producers:
            while True:
                producer.check_alive()
                last = read_tail(self.client, producer.topics.progress).last
                head_us = 0
                if last is not None and last.value is not None:
                    head_us = decode_progress(last.value, schema_ids).head_us
                if head_us > time_us:
                    break
                if time.monotonic() > deadline:
                    message = (
                        f"the head of {producer.topics.log} has not advanced in {WAIT_S_MAX:.0f} s"
                    )
                    raise Halt(message)
                time.sleep(POLL_S)

    def check_alive(self) -> None:
        """Raise Halt with its log's tail if a producer has ended."""
        for producer in self._producers:
            producer.check_alive()

    def check_rows(self, rows_per_shard: int) -> None:
        """Raise Halt unless each shard log holds exactly `rows_per_shard` records."""
        for producer in self._producers:
            if (found := producer.last_seq()) != rows_per_shard:
                message = f"{producer.topics.log} holds {found} records, not {rows_per_shard}"
                raise Halt(message)

    def _kill(self) -> None:
        for producer in self._producers:
            producer.kill()
