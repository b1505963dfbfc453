"""Reads a backlog of two shards without Spark, beside confluent-kafka on the same logs.

And over HTTP, beside the Subscriber; processor time and memory are then those of the server.
"""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec

from benchmarks.figures import PER_MESSAGES, Figure, Turn, figure
from benchmarks.stack import Stack
from benchmarks.stream_server import StreamServer
from benchmarks.two_shards import SHARDS, TwoShards
from benchmarks.workloads import Workload
from event_token.errors import Halt

EVENTS = "subscriber.events"
IMAGES = "subscriber.images"
BATCHES = "subscriber.batches"
NDJSON = "streams.ndjson"
ARROW = "streams.arrow"
NAMES = (EVENTS, IMAGES, BATCHES, NDJSON, ARROW)
# confluent-kafka's extras avro and schemaregistry bring it; without them fastavro decodes alone.
HAS_DESERIALIZER = all(map(find_spec, ("attrs", "authlib", "cachetools", "httpx2")))
DECODED = (
    ("deserializer", "confluent-kafka and AvroDeserializer")
    if HAS_DESERIALIZER
    else ("avro", "confluent-kafka and fastavro")
)
# Beside what each is read, and how it is called.
PEERS = {
    EVENTS: ("consume", "confluent-kafka, undecoded"),
    IMAGES: DECODED,
    BATCHES: DECODED,
    NDJSON: ("images", "Subscriber, its rows"),
    ARROW: ("batches", "Subscriber, batches"),
}
# Of a server that reads for a client.
STREAMS = (NDJSON, ARROW)
KEYSPACE = "read"
TABLE = "read_rows"
ROWS_PER_TRANSACTION = 100
TRANSACTIONS_PER_SHARD = 5_000
TRANSACTIONS_PER_SHARD_QUICK = 1_500
JOB_S_MAX = 600.0


@dataclass(frozen=True, slots=True)
class Reading:
    """What one reader took for the rows after its start."""

    rows: int
    seconds: float
    cpu_s: float
    peak_mb: float


def run(stack: Stack, names: tuple[str, ...], *, runs: int, quick: bool) -> list[Figure]:
    """Fill the logs, then read them in each way and beside its peer, `runs` times."""
    transactions = TRANSACTIONS_PER_SHARD_QUICK if quick else TRANSACTIONS_PER_SHARD
    rows = transactions * ROWS_PER_TRANSACTION * len(SHARDS)
    stack.report(f"{', '.join(names)}: filling two shards with {rows:,} rows")
    workload = Workload(f"subscriber.{TABLE}", transactions, ROWS_PER_TRANSACTION)
    shards = TwoShards.filled(stack, KEYSPACE, workload)
    figures: list[Figure] = []
    for name in names:
        way, (other, peer) = name.rpartition(".")[2], PEERS[name]
        ours, theirs = [], []
        for number in range(1, runs + 1):
            stack.report(f"{name}: run {number} of {runs}")
            read = _read_stream if name in STREAMS else _read
            ours.append(read(stack, shards, way, rows))
            theirs.append(_read(stack, shards, other, rows))
        both = list(zip(ours, theirs, strict=True))
        rates = [Turn(a.rows / a.seconds, b.rows / b.seconds) for a, b in both]
        cpu = [Turn(_cpu_per_100k(a), _cpu_per_100k(b)) for a, b in both]
        memory = [Turn(a.peak_mb, b.peak_mb) for a, b in both]
        figures += [
            figure(name, "rows/s", rates, peer=peer),
            figure(f"{name}.cpu", "processor s per 100 k rows", cpu, peer=peer),
            figure(f"{name}.memory", "MB, peak", memory, peer=peer),
        ]
    return figures


def _cpu_per_100k(reading: Reading) -> float:
    return reading.cpu_s / reading.rows * PER_MESSAGES


def _read_stream(stack: Stack, shards: TwoShards, way: str, rows: int) -> Reading:
    """Read from a new server, of which the processor time and the memory are."""
    with StreamServer(shards.settings) as server:
        url = f"{server.url}/v1/streams/{KEYSPACE}?start=earliest"
        begun_cpu_s = server.cpu_s()
        reading = _read(stack, shards, way, rows, url)
        cpu_s = (server.cpu_s() - begun_cpu_s) * reading.rows / rows
        return replace(reading, cpu_s=cpu_s, peak_mb=server.peak_mb())


def _read(stack: Stack, shards: TwoShards, way: str, rows: int, url: str | None = None) -> Reading:
    """Run `benchmarks.subscriber_job`, at a URL for a stream. Halt if it fails or does not end."""
    job_path, result_path = (stack.folder / f"{way}.{name}" for name in ("job", "result"))
    job: dict[str, object] = {"way": way, "rows": rows, "keyspace": KEYSPACE, "url": url}
    job["brokers"] = shards.client.brokers
    job_path.write_text(json.dumps(job))
    command = [sys.executable, "-m", "benchmarks.subscriber_job", str(job_path), str(result_path)]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=JOB_S_MAX
        )
    except subprocess.TimeoutExpired as slow:
        message = f"reading {rows:,} rows ({way}) has not ended after {JOB_S_MAX:.0f} s"
        raise Halt(message) from slow
    if done.returncode != 0:
        message = f"reading ({way}) ended with status {done.returncode}:\n{done.stderr}"
        raise Halt(message)
    return Reading(**json.loads(result_path.read_text()))
