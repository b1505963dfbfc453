"""Schema ids: from the topic `_shardstream.schemas`, or from a Confluent-compatible registry."""

import base64
import json
import threading
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from confluent_kafka import Consumer, KafkaError, Message, Producer

from event_token.errors import Halt, Retry, UsageError
from topics.errors import SchemaRefused
from topics.kafka.client import ClientConfig, Deadline, open_producer
from topics.kafka.errors import kafka_error, kafka_errors
from topics.kafka.partition_reader import PartitionReader, open_end_consumer
from topics.names import SCHEMAS_TOPIC
from topics.records.table_shape import SCHEMA_ID_MAX, SchemaIds, fingerprint

_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"

# A registry answers in milliseconds; a leader change takes seconds.
_REQUEST_TIMEOUT_S: Final = 10.0

# Far above the schema of any table (4,096 columns); keeps a wrong server from filling memory.
_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_TOO_MANY_REQUESTS: Final = 429
_SERVER_FAULT: Final = 500


class RegistryClient:
    """A registry at a URL, which may contain name and password.

    No connection is made before the first call. Retry when the registry does not answer or fails,
    UsageError when it refuses a call.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError("the schema registry's URL must be http://host[:port] or https://")
        host = parts.netloc.rpartition("@")[2]
        self.base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        self._headers = {"Content-Type": _CONTENT_TYPE, "Accept": _CONTENT_TYPE}
        if parts.username is not None:
            account = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(account.encode()).decode()}"

    def add_schema(self, subject: str, text: str) -> int:
        """Register an Avro schema as the newest version of a subject and return its id.

        SchemaRefused if it is not compatible with those that the subject has.
        """
        answer = self.must(
            "POST",
            f"/subjects/{quote(subject, safe='')}/versions",
            {"schemaType": "AVRO", "schema": text},
        )
        schema_id: int = self.field(answer, "id", int)
        if not 0 <= schema_id <= SCHEMA_ID_MAX:
            raise Halt(f"the registry {self.base} returned {schema_id}, which is not a schema id")
        return schema_id

    def field(self, answer: dict[str, Any], name: str, of: type) -> Any:
        """Return a field of an answer; Halt when it is missing."""
        value = answer.get(name)
        if not isinstance(value, of):
            raise Halt(f"the registry {self.base} returned an answer without {name!r}")
        return value

    def must(self, method: str, path: str, body: dict[str, str] | None) -> dict[str, Any]:
        """Return the answer; UsageError for 404."""
        answer = self.call(method, path, body)
        if answer is None:
            raise UsageError(
                f"{method} {self.base}{path}: not found: is this a Confluent-compatible registry?",
            )
        return answer

    def call(self, method: str, path: str, body: dict[str, str] | None) -> dict[str, Any] | None:
        """Return the answer, None for 404."""
        payload = None if body is None else json.dumps(body).encode()
        request = Request(  # noqa: S310 - the scheme is checked at construction
            self.base + path,
            data=payload,
            headers=self._headers,
            method=method,
        )
        doing = f"{method} {self.base}{path}"
        try:
            with urlopen(request, timeout=_REQUEST_TIMEOUT_S) as response:  # noqa: S310
                answer = json.loads(response.read(_ANSWER_BYTES_MAX))
        except HTTPError as error:
            if error.code == _NOT_FOUND:
                return None
            reason = error.read(500).decode(errors="replace")
            if error.code >= _SERVER_FAULT or error.code == _TOO_MANY_REQUESTS:
                raise Retry(f"{doing}: {error.code} {reason}") from error
            refused = SchemaRefused if error.code == _CONFLICT else UsageError
            raise refused(f"{doing}: {error.code} {reason}") from error
        except (URLError, TimeoutError, ConnectionError) as error:
            raise Retry(f"{doing}: the schema registry does not answer: {error}") from error
        except ValueError as error:
            raise UsageError(f"{doing}: the answer is not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise UsageError(f"{doing}: the answer is not a JSON object")
        return answer


class RegistrySchemaIds:
    """Schema ids of a Confluent-compatible registry.

    Each table has its own subject, `shardstream.<keyspace>.<database>.<table>`, with compatibility
    NONE: DDL decides on the next version of a table, and every record carries the id of its schema.
    Name and password may be given in the URL. Thread-safe. No connection is made before the first
    call.
    """

    def __init__(self, url: str) -> None:
        self._client = RegistryClient(url)
        self._lock = threading.Lock()
        self._ids: dict[str, int] = {}
        self._texts: dict[int, str] = {}
        self._subjects: set[str] = set()

    def __repr__(self) -> str:
        return f"RegistrySchemaIds({self._client.base!r})"

    def register(self, text: str) -> int:
        """Return the id of a schema, registering it if it is new."""
        with self._lock:
            if text not in self._ids:
                schema_id = self._register(text)
                self._texts.setdefault(schema_id, text)
                self._ids[text] = schema_id
            return self._ids[text]

    def text_of(self, schema_id: int) -> str:
        """Return the schema with this id; Halt when the registry has none."""
        with self._lock:
            if schema_id not in self._texts:
                answer = self._client.call("GET", f"/schemas/ids/{schema_id}", None)
                if answer is None:
                    raise Halt(
                        f"schema {schema_id} is not in the registry {self._client.base}: a "
                        f"record was written with another registry",
                    )
                self._texts[schema_id] = self._client.field(answer, "schema", str)
            return self._texts[schema_id]

    def newest_of(self, keyspace: str, database: str, table: str) -> tuple[int, str] | None:
        """Return id and text of the newest version of a keyspace's table, None if it has none."""
        named = {"keyspace": keyspace, "database": database, "table": table}
        subject = quote(self._subject_of(named), safe="")
        answer = self._client.call("GET", f"/subjects/{subject}/versions/latest", None)
        if answer is None:
            return None
        schema_id = self._client.field(answer, "id", int)
        text: str = self._client.field(answer, "schema", str)
        schema = json.loads(text)
        # Names may contain dots, so two tables may share a subject.
        is_its = all(schema.get(name) == value for name, value in named.items())
        return (schema_id, text) if is_its else None

    def _register(self, text: str) -> int:
        subject = self._subject_of(json.loads(text))
        config = f"/config/{quote(subject, safe='')}"
        rule = {"compatibility": "NONE"}
        if subject not in self._subjects and self._client.call("PUT", config, rule) is not None:
            self._subjects.add(subject)
        try:
            schema_id = self._client.add_schema(subject, text)
        except SchemaRefused as error:
            raise UsageError(
                f"{error}. Versions of a table are what its DDL makes them, so nothing may check "
                f"subject {subject}: remove the registry's global rule, which in Apicurio Registry "
                f"holds in spite of a subject's NONE"
            ) from error
        if subject not in self._subjects:
            # Apicurio has a rule only of a subject that exists; its first schema breaks none.
            self._client.must("PUT", config, rule)
            self._subjects.add(subject)
        # Readers must get exactly the registered schema, even if the registry normalises it.
        back = self._client.must("GET", f"/schemas/ids/{schema_id}", None)
        if json.loads(self._client.field(back, "schema", str)) != json.loads(text):
            raise Halt(
                f"the registry {self._client.base} changed a schema of {subject}: id {schema_id} "
                f"does not read back as it was registered",
            )
        return schema_id

    def _subject_of(self, schema: Mapping[str, Any]) -> str:
        if "table" not in schema:
            return f"shardstream.{schema['name']}"
        names = (schema[name] for name in ("keyspace", "database", "table"))
        return ".".join(("shardstream", *names))


# Longer than a leader change takes.
_WRITE_TIMEOUT_S: Final = 30.0
_READ_TIMEOUT_S: Final = 60.0

# Between two reads for a record that was acknowledged but is not readable yet.
_READ_BACK_PAUSE_S: Final = 0.05


def open_schema_ids(config: ClientConfig, registry_url: str | None) -> SchemaIds:
    """Return the schema ids of a keyspace: from the registry if one is given, else the topic."""
    if registry_url is None:
        return TopicSchemaIds(config)
    return RegistrySchemaIds(registry_url)


class TopicSchemaIds:
    """Schema ids of the topic: the offset of the first record with a schema's fingerprint as key.

    Producers that write the same schema concurrently find the same first record, so they agree
    without coordination. Schemas are written outside transactions, and their id is used once all
    records before them have been read. Thread-safe. No connection is made before the first call;
    its clients serve the next ones until a call fails: a new producer waits half a second for its
    id.
    """

    def __init__(self, config: ClientConfig, topic: str = SCHEMAS_TOPIC) -> None:
        self._config = config
        self._topic = topic
        self._lock = threading.Lock()
        self._texts: dict[int, str] = {}  # of every record, including repeated ones
        self._ids: dict[str, int] = {}  # by text
        self._next_offset = 0
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None

    def register(self, text: str) -> int:
        """Return the id of a schema. UsageError without the topic, Retry on a broker fault."""
        with self._lock:
            if text not in self._ids:
                self._read_new()
            if text not in self._ids:
                offset = self._write(text)
                if offset == self._next_offset:  # nobody else has written since the last read
                    self._note(offset, text)
                else:
                    self._read_back(text)
            schema_id = self._ids[text]
        if schema_id > SCHEMA_ID_MAX:
            raise Halt(f"{self._topic} is full: offset {schema_id} is too large for a schema id")
        return schema_id

    def text_of(self, schema_id: int) -> str:
        """Return the schema with this id; Halt when the topic has no such record."""
        # The common case; reading a dict needs no lock.
        text = self._texts.get(schema_id)
        if text is not None:
            return text
        with self._lock:
            self._read_new()
            text = self._texts.get(schema_id)
            end = self._next_offset
        if text is None:
            raise Halt(
                f"schema {schema_id} is not in {self._topic}, which ends at offset {end} "
                f"(brokers {self._config.brokers}): a record was written with another registry, "
                f"or the topic was recreated",
            )
        return text

    def _read_new(self) -> None:
        """Read the records written since the last call."""
        consumer, self._consumer = self._consumer or open_end_consumer(self._config), None
        with PartitionReader(self._config, self._topic, 0, _READ_TIMEOUT_S, consumer) as reader:
            start, end = reader.bounds()
            if start > 0 or end < self._next_offset:
                raise Halt(
                    f"{self._topic} has lost schemas: it holds offsets {start} to {end} and "
                    f"{self._next_offset} have been read. Its records must never be deleted",
                )
            for record in reader.records(self._next_offset, end):
                text = (record.value or b"").decode()
                if record.key != fingerprint(text).encode():
                    raise Halt(
                        f"{self._topic}, offset {record.offset}: the key is not the fingerprint "
                        f"of the value: another program wrote to this topic",
                    )
                self._note(record.offset, text)
            self._next_offset = end
        self._consumer = consumer

    def _note(self, offset: int, text: str) -> None:
        self._texts[offset] = text
        self._ids.setdefault(text, offset)
        self._next_offset = offset + 1

    def _write(self, text: str) -> int | None:
        """Write a schema and return its offset; None if the broker did not return it."""
        outcome: list[tuple[KafkaError | None, int | None]] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            outcome.append((error, message.offset()))

        doing = f"registering a schema in {self._topic}"
        brokers = self._config.brokers
        producer, self._producer = self._producer or open_producer(self._config), None
        with kafka_errors(doing, brokers):
            producer.produce(
                self._topic,
                text.encode(),
                fingerprint(text).encode(),
                0,
                on_delivery=on_delivery,
            )
            producer.flush(_WRITE_TIMEOUT_S)
        if not outcome:
            # The record may still arrive; another one with the same fingerprint is harmless.
            raise Retry(f"{doing} (brokers {brokers}): no answer in {_WRITE_TIMEOUT_S:g} s")
        error, offset = outcome[0]
        if error is not None:
            raise kafka_error(error, doing, brokers)
        self._producer = producer
        return offset

    def _read_back(self, text: str) -> None:
        deadline = Deadline(_READ_TIMEOUT_S)
        self._read_new()
        while text not in self._ids:
            if deadline.passed:
                raise Retry(
                    f"a schema written to {self._topic} cannot be read back after "
                    f"{_READ_TIMEOUT_S:g} s (brokers {self._config.brokers})",
                )
            time.sleep(_READ_BACK_PAUSE_S)
            self._read_new()
