"""Records of the copy topic: what is written is read, and what is unknown is refused."""

import json

import pytest

from event_token.errors import Halt
from topics.errors import CorruptRecord
from topics.kafka.client import ClientConfig, write_record
from topics.kafka.provisioning import provision_shard
from topics.names import ShardTopics
from topics.progress.copy_topic import (
    CopyAction,
    CopyAnswer,
    CopyFeed,
    CopyRecord,
    CopyRequest,
    CopyState,
    ProvedTable,
    TableCopy,
    decode,
    encode,
    record_key,
)

WHERE = "shop.-.copy, offset 7"
COPY = TableCopy(
    "shop",
    "orders",
    "1",
    CopyState.PAUSED,
    5,
    6,
    key=("id",),
    last_key=("3",),
    last_key_text={"id": "3"},
    rows=3,
)
RECORDS: list[CopyRecord] = [
    COPY,
    CopyRequest(CopyAction.START, ("shop.orders",), "id > 3"),
    CopyRequest(CopyAction.START, ("shop.orders",), after_seq=7),
    CopyAnswer("1", ("shop.orders",), ("a problem",)),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_records_are_read_as_written(record: CopyRecord) -> None:
    """Progress, requests and answers."""
    assert decode(record_key(record), encode(record), WHERE) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_layout_of_another_release_halts(record: CopyRecord) -> None:
    """A layout that is not known is refused by its number and place, not guessed at."""
    value = json.dumps({**json.loads(encode(record)), "layout": 2}).encode()

    with pytest.raises(Halt, match=f"{WHERE}: layout 2 of the copy record") as raised:
        decode(record_key(record), value, WHERE)
    assert not isinstance(raised.value, CorruptRecord)


@pytest.mark.parametrize("value", [b"", b"{}", b'{"layout": 1}', b'{"layout": 1, "more": 2}'])
def test_broken_records_are_named(value: bytes) -> None:
    """What is not a record of the topic says where it lies."""
    with pytest.raises(CorruptRecord, match=WHERE):
        decode(record_key(COPY), value, WHERE)


@pytest.mark.full
def test_a_feed_keeps_no_proofs_that_were_taken(config: ClientConfig, keyspace: str) -> None:
    """The producer that follows the topic has its own; other records are followed on."""
    shard = ShardTopics(keyspace, "-")
    provision_shard(config, shard)

    def write(record: CopyRecord) -> None:
        write_record(config, shard.copy, record_key(record), encode(record))

    write(ProvedTable("d", "t"))
    write(ProvedTable("d", "gone"))
    write_record(config, shard.copy, record_key(ProvedTable("d", "gone")), None)
    with CopyFeed(config, shard) as feed:
        feed.read_to_end()
        assert feed.take_proved() == {("d", "t"): ProvedTable("d", "t")}
        write(ProvedTable("d", "u"))
        write_record(config, shard.copy, record_key(ProvedTable("d", "t")), None)
        write(COPY)
        feed.read_to_end()
        assert feed.tables == {("shop", "orders"): COPY}
        assert feed.take_proved() == {}
