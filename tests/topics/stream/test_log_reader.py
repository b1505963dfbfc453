import pytest

from tests.topics.shard_writer import CELL_US, TIMEOUT_S, ShardWriter, Writers
from topics.errors import (
    LogGap,
    LogRepeat,
    LogShrank,
    PositionTooOld,
    ReaderClosed,
    RowsNotReadable,
)
from topics.kafka import consumer
from topics.kafka.client import ClientConfig, open_admin
from topics.reading.planner import ShardRange
from topics.stream import log_reader
from topics.stream.log_reader import ShardLogReader


def reader_of(
    writer: ShardWriter, config: ClientConfig, wait_s: float = TIMEOUT_S
) -> ShardLogReader:
    """A reader of the writer's log."""
    return ShardLogReader(config, writer.topics.keyspace, writer.shard, rows_wait_s=wait_s)


def test_ranges_in_and_out_of_sequence(config: ClientConfig, writers: Writers) -> None:
    """Consecutive ranges, one abandoned half-way and one read again, all deliver their rows."""
    (writer,) = writers("-")
    for n in range(3):
        writer.commit((n * CELL_US, 4))
    reader = reader_of(writer, config)

    first = [r.seq for r in reader.read(ShardRange("-", 0, 5, 1, 4))]
    given_up = next(reader.read(ShardRange("-", 4, 10, 5, 8)))
    rest = [r.seq for r in reader.read(ShardRange("-", 6, 15, 6, 12))]
    again = [r.offset for r in reader.read(ShardRange("-", 0, 10, 1, 8))]
    many = list(reader.read_many(ShardRange("-", 0, 15, 1, 12), 5, 1 << 20))
    reader.close()

    assert (first, given_up.seq, rest) == ([1, 2, 3, 4], 5, [6, 7, 8, 9, 10, 11, 12])
    assert again == [0, 1, 2, 3, 5, 6, 7, 8]
    assert [len(records) for records, _ in many] == [5, 5, 2]
    found = [offset for _, offsets in many for offset in offsets]
    assert found == [*range(4), *range(5, 9), *range(10, 14)]


@pytest.mark.parametrize("take_max", [1, 4, 1_000])
def test_lists_of_records_have_a_size(
    take_max: int, config: ClientConfig, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However messages come, lists end before they grow too large; a large record has its own."""
    monkeypatch.setattr(log_reader, "TAKE_MAX", take_max)
    (writer,) = writers("-")
    writer.commit_events(
        [*writer.rows([(0, 3)]), writer.row(0, note="x" * 4_000), *writer.rows([(CELL_US, 3)])]
    )
    part = ShardRange("-", 0, 8, 1, 7)
    reader = reader_of(writer, config)
    sizes = [len(record.value) for record in reader.read(part)]

    lists = list(reader.read_many(part, 100, 3 * max(sizes[:3]) - 1))
    reader.close()

    assert sizes[3] > 3 * max(sizes[:3])
    assert [offsets for _, offsets in lists] == [[0, 1], [2], [3], [4, 5], [6]]
    assert [len(record) for records, _ in lists for record in records] == sizes


def test_a_gap_and_a_repeat_stop_the_reader(config: ClientConfig, writers: Writers) -> None:
    """A missing or repeated seq is an error that names topic, offset and seq."""
    (writer,) = writers("-")
    rows = writer.rows([(0, 5)])
    writer.commit_rows([rows[0], rows[1], rows[1], rows[3], rows[4]])
    log = writer.topics.log

    for first_seq, start, error, message in (
        (1, 0, LogRepeat, f"{log}, offset 2: seq 2 where 3 must be"),
        (2, 2, LogGap, f"{log}, offset 3: seq 4 where 3 must be: 1 records are missing"),
    ):
        reader = reader_of(writer, config)
        with pytest.raises(error, match=message):
            list(reader.read(ShardRange("-", start, 9, first_seq, 5)))
        reader.close()


def test_rows_that_do_not_come(config: ClientConfig, writers: Writers) -> None:
    """Rows announced by progress are waited for; after the limit an error names the gap."""
    (writer,) = writers("-")
    writer.commit((0, 2))
    reader = reader_of(writer, config)

    reading = reader.read(ShardRange("-", 0, 9, 1, 4))
    assert [next(reading).seq for _ in range(2)] == [1, 2]
    reader._rows_wait_s = 0.5
    with pytest.raises(RowsNotReadable, match=r"announces seq 4 below offset 9, but nothing from"):
        next(reading)
    writer.commit((CELL_US, 2))
    reader._rows_wait_s = TIMEOUT_S
    rows = [r.seq for r in reader.read(ShardRange("-", 0, 9, 3, 4))]
    reader.close()

    assert rows == [3, 4]


def test_an_offset_beyond_the_log(config: ClientConfig, writers: Writers) -> None:
    """A position beyond the log's end is an error: the log was truncated or recreated."""
    (writer,) = writers("-")
    writer.commit((0, 2))
    reader = reader_of(writer, config)

    with pytest.raises(LogShrank, match=r"offset 700 .* is beyond the log's end"):
        list(reader.read(ShardRange("-", 700, 702, 500, 501)))
    reader.close()


def test_rows_that_retention_has_removed(config: ClientConfig, writers: Writers) -> None:
    """F09: A range whose beginning was deleted is refused by seq, not read from the new start."""
    (writer,) = writers("-")
    writer.commit((0, 4))
    writer.wait_committed()
    writer.remove_until(2)
    reader = reader_of(writer, config)

    with pytest.raises(PositionTooOld, match="retention has removed seq 2 to 2; the log begins"):
        list(reader.read(ShardRange("-", 1, 4, 2, 4)))
    reader.close()


def test_a_deleted_topic(
    config: ClientConfig, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F09: A log that is deleted under the reader stops it, once it stays unknown."""
    monkeypatch.setattr(consumer, "SILENCE_S_MAX", 0.1)
    monkeypatch.setattr(consumer, "TOPIC_UNKNOWN_S_MAX", 1.0)
    (writer,) = writers("-")
    writer.commit((0, 1))
    reader = reader_of(writer, config)
    assert [r.seq for r in reader.read(ShardRange("-", 0, 1, 1, 1))] == [1]
    admin = open_admin(config)
    for future in admin.delete_topics([writer.topics.log]).values():
        future.result(TIMEOUT_S)

    with pytest.raises(LogShrank, match="the topic is gone"):
        list(reader.read(ShardRange("-", 1, 9, 2, 2)))
    reader.close()


def test_a_reader_that_is_stopped(config: ClientConfig, writers: Writers) -> None:
    """`stop` ends a read that waits."""
    (writer,) = writers("-")
    writer.commit((0, 1))
    reader = reader_of(writer, config)
    rows = reader.read(ShardRange("-", 0, 9, 1, 2))
    assert next(rows).seq == 1
    reader.stop()

    with pytest.raises(ReaderClosed):
        next(rows)
    reader.close()
