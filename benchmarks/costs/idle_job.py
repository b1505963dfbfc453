"""Idle shards in one process, without Kafka: `... .idle_job WAY SHARDS SECONDS HOST PORT USER`.

Reads the server's password from stdin. Each shard has a replication stream, a decoder, and the
connection on which the server is asked for its clock and executed set, as a producer has them. WAY
is `threads`, a thread per shard that waits and asks as producers do today, or `loop`, one thread
for all. Prints what it costs.
"""

import json
import selectors
import sys
import threading
import time
from pathlib import Path
from typing import Final

from databases.connection import open_connection
from databases.server import DatabaseServer
from databases.server_facts import MysqlFacts
from event_token import Flavor, parse_gtid_set
from producers.decoder import Decoder, DecoderOptions
from producers.replication.stream import ReplicationStream, random_server_id
from producers.session.streaming import WAIT_S_MAX
from topics.kafka.client import MESSAGE_BYTES_MAX

HEARTBEAT_S: Final = 0.25
ROWS_MAX: Final = 1_000


class IdleShard:
    """What a session has open of its server, and what it does between rows."""

    def __init__(self, server: DatabaseServer) -> None:
        """Connect twice, and stream from now on."""
        self._family = MysqlFacts()
        self._connection = open_connection(server)
        position = parse_gtid_set(self._family.moment(self._connection).executed, Flavor.MYSQL)
        self.stream = ReplicationStream.open(server, self._family, position, random_server_id())
        self._decoder = Decoder(
            DecoderOptions(
                topic="idle.-",
                keyspace="idle",
                shard="-",
                flavor=Flavor.MYSQL,
                position=str(position),
                next_seq=1,
                last_timestamp_us=0,
                last_cell_us=-1,
                produce=_refuse,
                record_bytes_max=MESSAGE_BYTES_MAX,
                on_full=_nothing,
                schema_id=_no_schema,
                max_clock_ahead_us=60_000_000,
                now_us=lambda: time.time_ns() // 1_000,
                on_notice=_no_notice,
            )
        )
        self.due_s = time.monotonic() + HEARTBEAT_S
        self.beats = 0

    def read(self) -> None:
        """Decode what has arrived."""
        stream = self.stream
        if stream.fill():
            stream.start = self._decoder.feed(stream.buffer, stream.start, stream.end, ROWS_MAX)

    def beat_if_due(self) -> None:
        """Ask for the moment and the role, as `ServerClock` does, and promise the clock."""
        now_s = time.monotonic()
        if now_s < self.due_s:
            return
        moment, _ = self._family.moment_and_role(self._connection)
        if self._decoder.reached(moment.executed):
            self._decoder.advance_head(moment.clock_us)
            self._decoder.take_batch()
            self.beats += 1
        self.due_s = max(now_s, self.due_s + HEARTBEAT_S)

    def run(self, until_s: float) -> None:
        """The turns of a thread of its own."""
        while (left_s := until_s - time.monotonic()) > 0:
            wait_s = min(WAIT_S_MAX, left_s, max(0.001, self.due_s - time.monotonic()))
            if self.stream.wait(wait_s):
                self.read()
            self.beat_if_due()


def _refuse(*_record: object) -> None:
    raise AssertionError("an idle server has sent rows")


def _nothing() -> None:
    pass


def _no_schema(_text: str) -> int:
    return 0


def _no_notice(_text: str) -> None:
    pass


def run_loop(shards: list[IdleShard], until_s: float) -> None:
    """One thread that waits for all streams, and asks for what is due."""
    with selectors.DefaultSelector() as selector:
        for shard in shards:
            selector.register(shard.stream._socket, selectors.EVENT_READ, shard)  # noqa: SLF001
        while (now_s := time.monotonic()) < until_s:
            due_s = min(shard.due_s for shard in shards)
            for key, _ in selector.select(min(until_s - now_s, max(0.0, due_s - now_s))):
                key.data.read()
            for shard in shards:
                shard.beat_if_due()


def run_threads(shards: list[IdleShard], until_s: float) -> None:
    """A thread per shard; returns once all have begun and ended."""
    threads = [threading.Thread(target=shard.run, args=(until_s,)) for shard in shards]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def rss_mb() -> float:
    """Resident memory now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS:"))) / 1024


def main(way: str, count: str, seconds: str, host: str, port: str, user: str) -> None:
    """Open the shards, run them, and print the cost of the seconds after that."""
    server = DatabaseServer(host, int(port), user, sys.stdin.read().strip())
    empty_mb = rss_mb()
    shards = [IdleShard(server) for _ in range(int(count))]
    threads = 1 + (len(shards) if way == "threads" else 0)
    run = run_threads if way == "threads" else run_loop
    run(shards, time.monotonic() + 2 * HEARTBEAT_S)  # the first turn of each
    before = sum(shard.beats for shard in shards)
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
    run(shards, begun_s + float(seconds))
    took_s, cpu_s = time.monotonic() - begun_s, time.process_time() - begun_cpu_s
    found: dict[str, float] = {
        "cpu_ms_per_s": cpu_s * 1e3 / took_s,
        "beats_per_s": (sum(shard.beats for shard in shards) - before) / took_s,
        "mb": rss_mb() - empty_mb,
        "empty_mb": empty_mb,
        "threads": threads,
        "handles": len(list(Path("/proc/self/fd").iterdir())),
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
