"""`python -m benchmarks.subscriber_job JOB RESULT`: reads a backlog of two shards in one way.

A process of its own, so that its processor time is that of the reader alone.
"""

import http.client
import io
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import fastavro
from confluent_kafka import Consumer, TopicPartition

from benchmarks.own_memory import peak_mb
from benchmarks.registry_server import serving_schemas
from shardstream import ClientConfig, Subscriber
from topics.names import ShardTopics
from topics.records.table_shape import WIRE_HEADER_BYTES
from topics.schemas import open_schema_ids

# The first rows start threads and connections, and are not measured.
WARM_UP_ROWS = 20_000
IDLE_S = 60.0
CONSUME_MAX = 1_000
CHUNK_BYTES_MAX = 1024 * 1024
ROW_BEGIN = b'{"type": "ROW", '
# As in two_shards, whose imports would count as memory of the reader.
SHARDS = ("-80", "80-")


def events(keyspace: str, config: ClientConfig) -> Iterator[int]:
    """Read events, and table, op and time of each."""
    with Subscriber(keyspace, start="earliest", config=config, idle_timeout_s=IDLE_S) as stream:
        for event in stream:
            _ = event.table, event.op, event.timestamp_us
            yield 1


def images(keyspace: str, config: ClientConfig) -> Iterator[int]:
    """Read events, and the row of each."""
    with Subscriber(keyspace, start="earliest", config=config, idle_timeout_s=IDLE_S) as stream:
        for event in stream:
            _ = event.table, event.op, event.after
            yield 1


def batches(keyspace: str, config: ClientConfig) -> Iterator[int]:
    """Read Arrow record batches."""
    with Subscriber(keyspace, start="earliest", config=config, idle_timeout_s=IDLE_S) as stream:
        for batch in stream.batches(rows_max=20_000):
            yield batch.rows


def consume(keyspace: str, config: ClientConfig) -> Iterator[int]:
    """Take the records from confluent-kafka, without looking at them."""
    yield from map(len, _messages(keyspace, config))


def avro(keyspace: str, config: ClientConfig) -> Iterator[int]:
    """Decode them with fastavro alone."""
    ids = open_schema_ids(config, None)
    schemas: dict[bytes, fastavro.types.Schema] = {}
    for values in _messages(keyspace, config):
        for value in values:
            header = value[:WIRE_HEADER_BYTES]
            if header not in schemas:
                text = ids.text_of(int.from_bytes(header, "big"))
                schemas[header] = fastavro.parse_schema(json.loads(text))
            stream = io.BytesIO(value)
            stream.seek(WIRE_HEADER_BYTES)
            fastavro.schemaless_reader(stream, schemas[header], None)
        yield len(values)


def deserializer(keyspace: str, config: ClientConfig) -> Iterator[int]:
    """Decode them with confluent-kafka's AvroDeserializer, which asks a registry for schemas."""
    # It comes with an extra of confluent-kafka, which only this needs.
    from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415 - as above
    from confluent_kafka.schema_registry.avro import AvroDeserializer  # noqa: PLC0415 - as above
    from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415

    with serving_schemas(open_schema_ids(config, None).text_of) as url:
        decode = AvroDeserializer(SchemaRegistryClient({"url": url}))
        context = SerializationContext(keyspace, MessageField.VALUE)
        for values in _messages(keyspace, config):
            for value in values:
                decode(value, context)
            yield len(values)


def _messages(keyspace: str, config: ClientConfig) -> Iterator[list[bytes]]:
    """Yield the values of both logs, in the order of each log alone."""
    consumer = Consumer(
        {
            "bootstrap.servers": config.brokers,
            "group.id": "bench",
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(ShardTopics(keyspace, shard).log, 0, 0) for shard in SHARDS])
    while True:
        yield [message.value() or b"" for message in consumer.consume(CONSUME_MAX, IDLE_S)]


def ndjson(url: str) -> Iterator[int]:
    """Read lines of a stream over HTTP, without parsing them."""
    rest = b""
    with _answer(url, "application/x-ndjson") as answer:
        while chunk := answer.read1(CHUNK_BYTES_MAX):
            lines, found, rest = (rest + chunk).rpartition(b"\n")
            yield (lines + found).count(ROW_BEGIN)


def arrow(url: str) -> Iterator[int]:
    """Read Arrow record batches of a stream over HTTP."""
    # The other ways' peak of memory is without it.
    import pyarrow as pa  # noqa: PLC0415 - as above

    with _answer(url, "application/vnd.apache.arrow.stream") as answer:
        source = pa.PythonFile(answer, mode="r")
        while True:
            with pa.ipc.open_stream(source) as reader:
                is_rows = b"table" in (reader.schema.metadata or {})
                for batch in reader:
                    yield batch.num_rows if is_rows else 0


@contextmanager
def _answer(url: str, accept: str) -> Iterator[http.client.HTTPResponse]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=IDLE_S)
    connection.request("GET", f"{parts.path}?{parts.query}", headers={"accept": accept})
    try:
        yield connection.getresponse()
    finally:
        connection.close()


STREAM_WAYS: dict[str, Callable[[str], Iterator[int]]] = {"ndjson": ndjson, "arrow": arrow}
WAYS: dict[str, Callable[[str, ClientConfig], Iterator[int]]] = {
    "events": events,
    "images": images,
    "batches": batches,
    "consume": consume,
    "avro": avro,
    "deserializer": deserializer,
}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(job_path: Path, result_path: Path) -> None:
    """Read all rows of the job; write rows, seconds and processor seconds of the measured part."""
    job = json.loads(job_path.read_text())
    config = ClientConfig({"bootstrap.servers": job["brokers"]})
    way, url = job["way"], job["url"]
    reading = WAYS[way](job["keyspace"], config) if url is None else STREAM_WAYS[way](url)
    done, warm, begun_s, begun_cpu_s = 0, 0, 0.0, 0.0
    for rows in reading:
        done += rows
        if not warm and done >= WARM_UP_ROWS:
            warm, begun_s, begun_cpu_s = done, time.monotonic(), _cpu_s()
        if done >= job["rows"]:
            break
    measured = {
        "rows": done - warm,
        "seconds": time.monotonic() - begun_s,
        "cpu_s": _cpu_s() - begun_cpu_s,
        "peak_mb": peak_mb(),
    }
    result_path.write_text(json.dumps(measured))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
