"""What reports of named readers tell."""

import json
from dataclasses import replace

import pytest

from event_token.errors import Halt, UsageError
from tests.topics.named_readers.reports import report
from topics.errors import CorruptRecord
from topics.named_readers import (
    RECENT_MAX,
    LastReports,
    ReaderKind,
    decode_record,
    encode_record,
)
from topics.names import reader_group, readers_topic


def readers(*instances: str) -> dict[str, list[str]]:
    """By name, the processes that use it now, after reports of these in turn."""
    reports = LastReports()
    for instance in instances:
        reports.take(report(instance=instance))
    return {r.last.name: [record.instance for record in r.all] for r in reports.readers()}


def test_a_report_is_read_as_it_was_written() -> None:
    """Position, host, version, time and kind arrive; without one it is of an application."""
    cache = replace(report(), kind=ReaderKind.CACHE.value)
    fields = json.loads(encode_record(report()))
    del fields["kind"]

    assert decode_record(encode_record(cache), "there") == cache
    assert decode_record(json.dumps(fields).encode(), "there") == report()


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"layout": 1, "name": "x"}'])
def test_other_bytes_are_refused_by_place(value: bytes) -> None:
    """A record that is no report is named by topic and offset."""
    with pytest.raises(CorruptRecord, match=r"commerce\.readers, offset 7"):
        decode_record(value, "commerce.readers, offset 7")


def test_a_later_layout_is_refused() -> None:
    """A report of a later release is not guessed at."""
    with pytest.raises(Halt, match="layout 2"):
        decode_record(b'{"layout": 2}', "there")


def test_a_restart_is_one_reader() -> None:
    """One process after the other is a restart, however often."""
    assert readers("a", "a", "b", "b", "c") == {"billing": ["c"]}


def test_two_processes_with_one_name_are_both_shown() -> None:
    """Reports that alternate come from two readers, until one of them falls silent."""
    assert readers("a", "b", "a") == {"billing": ["a", "b"]}
    assert readers("c", "a", "b", "a", "c") == {"billing": ["c", "a", "b"]}
    assert readers("b", "a", "b", *["a"] * RECENT_MAX) == {"billing": ["a"]}


def test_names_stay_apart() -> None:
    """The newest report of each name counts, and a forgotten name is gone."""
    reports = LastReports()
    for name, offset in (("b", 1), ("a", 2), ("b", 3)):
        reports.take(report(name, offset=offset))

    assert [(r.last.name, r.last.position.shards["-80"].offset) for r in reports.readers()] == [
        ("a", 2),
        ("b", 3),
    ]
    reports.forget("b")
    reports.forget("never seen")
    assert [r.last.name for r in reports.readers()] == ["a"]


def test_names_that_fit_no_group_are_refused() -> None:
    """A group's name tells keyspace and reader apart."""
    assert readers_topic("commerce") == "commerce.readers"
    assert reader_group("commerce", "billing.eu") == "shardstream.commerce.billing.eu"
    for name in ("", "a b", "a/b", "x" * 101):
        with pytest.raises(UsageError, match="reader name"):
            reader_group("commerce", name)
