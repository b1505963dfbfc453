"""The record by which a named reader tells where it is, the last one per name. Pure."""

import json
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from event_token import KeyRange, StreamPosition
from event_token.errors import Halt, UsageError
from topics.errors import CorruptRecord

# The version of the JSON layout; others are refused.
LAYOUT: Final = 1
# Reports of a name that are looked at to find two readers with one name: a minute of one reader.
RECENT_MAX: Final = 6


@dataclass(frozen=True, slots=True)
class ReaderRecord:
    """What a reader reported: where a restart would continue, and who it is.

    `instance` differs between processes. `at_us`: by the clock of `host`. `failed`: how many of
    the process's reports did not reach Kafka before, group offsets included.
    """

    name: str
    instance: str
    position: StreamPosition
    key_range: KeyRange
    host: str
    version: str
    at_us: int
    failed: int


def record_key(name: str) -> bytes:
    """Return the Kafka key of a reader."""
    return name.encode()


def encode_record(record: ReaderRecord) -> bytes:
    """Return the Kafka value; epoch and frontier stand beside the position for people."""
    return json.dumps(
        {
            "layout": LAYOUT,
            "name": record.name,
            "instance": record.instance,
            "position": record.position.to_string(),
            "epoch": record.position.epoch,
            "frontier_us": record.position.frontier_us,
            "key_range": str(record.key_range),
            "host": record.host,
            "version": record.version,
            "at_us": record.at_us,
            "failed": record.failed,
        }
    ).encode()


def decode_record(value: bytes, where: str) -> ReaderRecord:
    """Decode a Kafka value; CorruptRecord, naming `where`, or Halt on another release's layout."""
    try:
        fields: dict[str, Any] = json.loads(value)
        if fields["layout"] != LAYOUT:
            raise Halt(
                f"{where}: layout {fields['layout']!r} of a reader's record is not known: use the "
                "release that wrote it"
            )
        return ReaderRecord(
            str(fields["name"]),
            str(fields["instance"]),
            StreamPosition.from_string(fields["position"]),
            KeyRange.parse(fields["key_range"]),
            str(fields["host"]),
            str(fields["version"]),
            int(fields["at_us"]),
            int(fields["failed"]),
        )
    except (ValueError, KeyError, TypeError, UsageError) as error:
        raise CorruptRecord(f"{where}: not a reader's record: {error!r}") from error


@dataclass(frozen=True, slots=True)
class NamedReader:
    """The newest report under a name, and those of other processes that use it at the same time."""

    last: ReaderRecord
    others: tuple[ReaderRecord, ...] = ()

    @property
    def all(self) -> tuple[ReaderRecord, ...]:
        """The newest report of each process that uses the name."""
        return (self.last, *self.others)


class LastReports:
    """The newest reports by name, from the records of the topic in their order."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[ReaderRecord]] = {}

    def take(self, record: ReaderRecord) -> None:
        """Take the next record."""
        self._recent.setdefault(record.name, deque(maxlen=RECENT_MAX)).append(record)

    def forget(self, name: str) -> None:
        """Drop a reader whose record was removed."""
        self._recent.pop(name, None)

    def readers(self) -> tuple[NamedReader, ...]:
        """Return the readers in the order of their names."""
        return tuple(_named(self._recent[name]) for name in sorted(self._recent))


def _named(recent: deque[ReaderRecord]) -> NamedReader:
    """Tell a restart (one process after the other) from two processes that take turns."""
    last = recent[-1]
    first = next(i for i, record in enumerate(recent) if record.instance == last.instance)
    others = {
        record.instance: record
        for record in list(recent)[first:]
        if record.instance != last.instance
    }
    return NamedReader(last, tuple(others.values()))
