import json
from collections.abc import Iterator

import pytest

from event_token.errors import Halt, Retry, UsageError
from tests.topics.records.events import insert
from tests.topics.records.record_encoder import RecordEncoder
from tests.topics.schemas.registry_server import RegistryServer, registry_server
from topics.kafka.client import ClientConfig
from topics.progress.codec import decode_progress, encode_progress
from topics.progress.record import Progress
from topics.records.event_decoder import EventDecoder
from topics.records.table_shape import (
    Column,
    TableShape,
    ValueKind,
    row_schema,
    schema_text,
    statement_schema,
)
from topics.schemas import RegistrySchemaIds, open_schema_ids

SHAPE = TableShape("shop", "größe/x", (Column("id", ValueKind.LONG, "bigint"),), (0,))


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """A registry on loopback."""
    with registry_server() as running:
        yield running


def test_events_and_progress_round_trip(server: RegistryServer) -> None:
    """What one client registers, another reads by id; both ask once a schema."""
    writer, reader = RegistrySchemaIds(server.url), RegistrySchemaIds(server.url)
    event = insert(SHAPE, {"id": 7})
    progress = Progress(1, 0, 0, "mysql", "", 5, (), None, "s", 5, 0)

    for _ in range(2):
        value = RecordEncoder(writer).encode(event)
        assert EventDecoder(reader).decode(value, event.shard, event.offset) == event
    assert decode_progress(encode_progress(progress, writer), reader) == progress

    assert len([call for call in server.calls if call.startswith("POST")]) == 2


def test_each_table_has_a_subject_without_compatibility(server: RegistryServer) -> None:
    """A table's next version is what its DDL says: no rule of the registry may refuse it."""
    ids = RegistrySchemaIds(server.url + "/")
    ids.register(schema_text(row_schema(SHAPE, "commerce")))
    ids.register(schema_text(statement_schema()))

    expected = {"shardstream.commerce.shop.größe/x", "shardstream.VEvent"}

    assert set(server.subjects) == expected
    assert server.compatibility == dict.fromkeys(expected, "NONE")


def test_unknown_id_halts_and_is_named(server: RegistryServer) -> None:
    """A record of another registry is not guessed at."""
    with pytest.raises(Halt, match="schema 12 is not in the registry"):
        RegistrySchemaIds(server.url).text_of(12)


def test_name_and_password_of_the_url_are_sent_and_not_shown(server: RegistryServer) -> None:
    """Credentials travel in the header; no repr and no error holds them."""
    server.account = "us er:p@ss/word"
    url = server.url.replace("http://", "http://us%20er:p%40ss%2Fword@")
    ids = RegistrySchemaIds(url)

    assert ids.register('{"type":"string","name":"s"}') == 1
    assert "word" not in repr(ids)

    wrong = RegistrySchemaIds(url.replace("ss", "zz"))
    with pytest.raises(UsageError, match="401") as caught:
        wrong.text_of(1)
    assert "word" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(503, Retry), (500, Retry), (429, Retry), (422, UsageError), (403, UsageError)],
)
def test_faults_of_the_registry_say_what_to_do(
    server: RegistryServer,
    status: int,
    expected: type[Exception],
) -> None:
    """Its own faults pass; refusals do not."""
    server.status = status

    with pytest.raises(expected, match=str(status)):
        RegistrySchemaIds(server.url).register(schema_text(statement_schema()))


def test_a_registry_that_is_not_there_is_a_passing_fault() -> None:
    """Nobody behind the address: said with the address."""
    with pytest.raises(Retry, match=r"127\.0\.0\.1:1"):
        RegistrySchemaIds("http://127.0.0.1:1").text_of(1)


def test_a_registry_that_changes_schemas_halts(server: RegistryServer) -> None:
    """An id is not used before the same schema has been read back."""
    server.rewrite = True

    with pytest.raises(Halt, match="changed a schema"):
        RegistrySchemaIds(server.url).register(schema_text(statement_schema()))


@pytest.mark.parametrize("url", ["file:///etc/passwd", "registry:8081", "http://", ""])
def test_other_urls_are_refused(url: str) -> None:
    """Only HTTP and HTTPS are spoken."""
    with pytest.raises(UsageError, match="http"):
        RegistrySchemaIds(url)


def test_a_url_chooses_the_registry(server: RegistryServer) -> None:
    """With a registry named, no broker is asked."""
    ids = open_schema_ids(ClientConfig({"bootstrap.servers": "127.0.0.1:1"}), server.url)

    assert (
        json.loads(ids.text_of(ids.register(schema_text(statement_schema())))) == statement_schema()
    )
