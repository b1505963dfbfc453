import multiprocessing
import threading
from multiprocessing.synchronize import Barrier

import pytest
from confluent_kafka import TopicPartition

from event_token.errors import Halt, UsageError
from tests.topics.schemas.writing import TIMEOUT_S, make_topic, transactional, write
from topics import schemas
from topics.kafka.client import ClientConfig, open_admin, open_producer
from topics.kafka.partition_reader import read_to_end
from topics.kafka.provisioning import provision_schemas_topic
from topics.records.table_shape import fingerprint
from topics.schemas import TopicSchemaIds, open_schema_ids


@pytest.fixture
def topic(config: ClientConfig, keyspace: str) -> str:
    """An empty schema topic."""
    make_topic(config, keyspace)
    return keyspace


def texts(count: int) -> list[str]:
    """Distinct schemas."""
    return [f'{{"type":"fixed","name":"f{i}","size":1}}' for i in range(count)]


def test_id_is_the_offset_and_gives_the_text_back(config: ClientConfig, topic: str) -> None:
    """Ids are offsets, the same for each who asks, and registering again writes nothing."""
    first, second = texts(2)
    ids = TopicSchemaIds(config, topic)

    given = [ids.register(first), ids.register(second), ids.register(first)]
    other = TopicSchemaIds(config, topic)

    assert given == [0, 1, 0]
    assert (other.text_of(1), other.register(first)) == (second, 0)
    assert len(list(read_to_end(config, topic))) == 2


def test_a_text_registered_later_is_found(config: ClientConfig, topic: str) -> None:
    """An id that is not known yet is looked for at the topic's end."""
    reader, writer = TopicSchemaIds(config, topic), TopicSchemaIds(config, topic)
    first, second = texts(2)

    for text in (first, second):
        assert reader.text_of(writer.register(text)) == text


def test_later_schemas_need_no_new_client(
    config: ClientConfig, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new table version costs round trips, not the opening of a producer and a consumer."""
    first, second = texts(2)
    writer, reader = TopicSchemaIds(config, topic), TopicSchemaIds(config, topic)
    reader.text_of(writer.register(first))
    for name in ("open_producer", "open_end_consumer"):
        monkeypatch.delattr(schemas, name)

    assert reader.text_of(writer.register(second)) == second


def test_an_id_counts_the_records_that_others_wrote(config: ClientConfig, topic: str) -> None:
    """Whether another producer has written since the last read changes no id."""
    one, other = TopicSchemaIds(config, topic), TopicSchemaIds(config, topic)
    first, second, third = texts(3)

    given = [one.register(first), other.register(second), one.register(third)]

    assert given == [0, 1, 2]
    assert [other.register(text) for text in (first, second, third)] == given


def test_the_first_of_equal_records_gives_the_id(config: ClientConfig, topic: str) -> None:
    """A schema that was written twice has one id, and both offsets give its text."""
    [text] = texts(1)
    producer = open_producer(config)
    for _ in range(2):
        producer.produce(topic, text.encode(), fingerprint(text).encode(), 0)
    assert producer.flush(TIMEOUT_S) == 0

    ids = TopicSchemaIds(config, topic)

    assert ids.register(text) == 0
    assert ids.text_of(1) == text


def test_threads_that_register_at_once_agree(config: ClientConfig, topic: str) -> None:
    """Producers without a coordinator find the same first record."""
    wanted = texts(3)
    found: list[list[int]] = []
    start = threading.Barrier(4)

    def register() -> None:
        ids = TopicSchemaIds(config, topic)
        start.wait(TIMEOUT_S)
        found.append([ids.register(text) for text in wanted])

    threads = [threading.Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)

    assert len(found) == 4
    assert all(ids == found[0] for ids in found)
    assert [TopicSchemaIds(config, topic).text_of(i) for i in found[0]] == wanted


def _register_in_process(
    config: ClientConfig,
    topic: str,
    start: Barrier,
    found: "multiprocessing.Queue[list[int]]",
) -> None:
    ids = TopicSchemaIds(config, topic)
    start.wait(TIMEOUT_S)
    found.put([ids.register(text) for text in texts(3)])


def test_processes_that_register_at_once_agree(config: ClientConfig, topic: str) -> None:
    """The same holds for producers in processes of their own."""
    context = multiprocessing.get_context("spawn")
    start, found = context.Barrier(2), context.Queue()
    processes = [
        context.Process(target=_register_in_process, args=(config, topic, start, found))
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    answers = [found.get(timeout=TIMEOUT_S) for _ in processes]
    for process in processes:
        process.join(TIMEOUT_S)

    assert answers[0] == answers[1]


def test_unknown_id_halts_and_is_named(config: ClientConfig, topic: str) -> None:
    """An id beyond the end is another registry's, or the topic is a new one."""
    TopicSchemaIds(config, topic).register(texts(1)[0])

    with pytest.raises(Halt, match="schema 77 is not in"):
        TopicSchemaIds(config, topic).text_of(77)


def test_an_open_transaction_does_not_hold_up_schemas(
    config: ClientConfig,
    topic: str,
    keyspace: str,
) -> None:
    """Schemas are written outside the producer's transaction, so they are readable at once."""
    log = f"{keyspace}.log"
    make_topic(config, log)
    write(transactional(config, log), log, [b"open"])

    assert TopicSchemaIds(config, topic).register(texts(1)[0]) == 0


def test_lost_schemas_halt(config: ClientConfig, topic: str) -> None:
    """A schema topic that was deleted from would give old ids to new schemas."""
    ids = TopicSchemaIds(config, topic)
    for text in texts(2):
        ids.register(text)
    admin = open_admin(config)
    for future in admin.delete_records([TopicPartition(topic, 0, 1)]).values():
        future.result(TIMEOUT_S)

    with pytest.raises(Halt, match="has lost schemas"):
        TopicSchemaIds(config, topic).register(texts(1)[0])


def test_a_foreign_record_halts(config: ClientConfig, topic: str) -> None:
    """A record that no producer of schemas wrote is not stepped over."""
    producer = open_producer(config)
    producer.produce(topic, b"hello", b"key", 0)
    assert producer.flush(TIMEOUT_S) == 0

    with pytest.raises(Halt, match="offset 0: the key is not the fingerprint"):
        TopicSchemaIds(config, topic).register(texts(1)[0])


def test_missing_topic_is_an_error_of_usage(config: ClientConfig, keyspace: str) -> None:
    """Without provisioning there is nowhere to write, and nothing is made in passing."""
    with pytest.raises(UsageError, match=keyspace):
        TopicSchemaIds(config, keyspace).register(texts(1)[0])


def test_without_a_registry_the_topic_is_used(config: ClientConfig) -> None:
    """A cluster whose schema topic is provisioned registers and reads back."""
    provision_schemas_topic(config)
    ids = open_schema_ids(config, None)

    assert ids.text_of(ids.register(texts(1)[0])) == texts(1)[0]
