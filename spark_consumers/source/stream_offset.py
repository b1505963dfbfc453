"""The offset that Spark checkpoints after each batch, and the tasks between two offsets. Pure.

`position` is the position of the stream. `splits` lists, per shard, the places inside the batch
ending here at which a task may begin: [offset, last seq before it], at bounds of Kafka
transactions. `seen` has what had been read before a hop without marks, per shard hopped to.
`begin`, in the end of a query's first batch, is where that batch begins: Spark does not store it,
and asks for the initial offset again when the batch is run again. `logs` has the ids of the shard
logs' topics, so that a log that was recreated is not taken for the one that was read, and
`key_range` the range that the query reads, which must not change.
The tasks follow from the two offsets alone, so a batch that is run again reads the same rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, cast

from event_token.errors import Halt, UsageError
from event_token.position import StreamPosition
from topics.reading.planner import ShardRange, ranges_between
from topics.reading.row_filters import ReadBeforeHop

Document = Mapping[str, object]
Splits = Mapping[str, Sequence[tuple[int, int]]]
Seen = Mapping[str, ReadBeforeHop]

# The version is that of the position in it. A field that another release has added may change what
# the others mean, so it is refused.
_FIELDS = frozenset({"position", "splits", "seen", "begin", "logs", "key_range"})


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A position, where the batch ending there may be split, and what was read before a hop.

    `begin` is that of the batch ending there, if it is the first one of its query.
    """

    position: StreamPosition
    splits: Splits = field(default_factory=dict)
    seen: Seen = field(default_factory=dict)
    begin: Self | None = None
    logs: Mapping[str, str] = field(default_factory=dict)
    key_range: str | None = None

    def moved_to(self, position: StreamPosition, splits: Splits) -> "StreamOffset":
        """Return a later offset of the same stream."""
        seen = {shard: before for shard, before in self.seen.items() if shard in position.shards}
        return StreamOffset(position, splits, seen)

    def hopped_to(self, position: StreamPosition, seen: Seen) -> "StreamOffset":
        """Return the offset after a hop without marks; `seen` covers the shards hopped to."""
        after = self.moved_to(position, {})
        return StreamOffset(position, {}, {**after.seen, **seen})

    def begun_at(self, begin: Self) -> Self:
        """Return the same offset as the end of a first batch, which begins at `begin`."""
        return replace(self, begin=begin)

    def to_document(self) -> dict[str, object]:
        """Return plain JSON values."""
        found: dict[str, object] = {"position": self.position.to_json_dict()}
        if self.splits:
            found["splits"] = {s: [list(place) for place in p] for s, p in self.splits.items()}
        if self.seen:
            found["seen"] = {shard: before.to_json_dict() for shard, before in self.seen.items()}
        if self.begin is not None:
            found["begin"] = self.begin.to_document()
        if self.logs:
            found["logs"] = dict(self.logs)
        if self.key_range is not None:
            found["key_range"] = self.key_range
        return found

    @classmethod
    def from_document(cls, document: Document) -> Self:
        """Parse a document; Halt when it is not an offset of this source and release."""
        unknown = sorted(document.keys() - _FIELDS)
        if unknown:
            raise Halt(
                f"the checkpoint holds an offset with {', '.join(unknown)}, which this release "
                "does not know: continue with the release that wrote it"
            )
        try:
            splits = cast("Mapping[str, list[list[int]]]", document.get("splits", {}))
            seen = cast("Mapping[str, Document]", document.get("seen", {}))
            begin = cast("Document | None", document.get("begin"))
            logs = cast("Mapping[str, str]", document.get("logs", {}))
            key_range = cast("str | None", document.get("key_range"))
            return cls(
                StreamPosition.from_json_dict(cast("Document", document["position"])),
                {s: [(int(o), int(q)) for o, q in places] for s, places in splits.items()},
                {shard: ReadBeforeHop.from_json_dict(before) for shard, before in seen.items()},
                None if begin is None else cls.from_document(begin),
                {shard: str(topic_id) for shard, topic_id in logs.items()},
                key_range,
            )
        except (AttributeError, KeyError, TypeError, ValueError, UsageError) as error:
            raise Halt(f"the checkpoint holds an offset of another source: {error}") from error


@dataclass(frozen=True, slots=True)
class TaskRange:
    """The range that one task reads; rows older than `late_before_us` are late.

    `seen`: what the stream had read before it hopped to the shard without marks.
    """

    part: ShardRange
    late_before_us: int
    seen: ReadBeforeHop | None = None


def tasks_between(start: StreamOffset, end: StreamOffset) -> list[TaskRange]:
    """Return the tasks of the batch from `start` to `end`.

    A first batch begins where its end says: a start such as `latest` may lie elsewhere by now.
    """
    start = start if end.begin is None else end.begin
    late_before_us = start.position.frontier_us
    tasks = []
    for shard, whole in ranges_between(start.position, end.position).items():
        parts = _split(whole, end.splits.get(shard, ()))
        tasks += [TaskRange(part, late_before_us, start.seen.get(shard)) for part in parts]
    return tasks


def _split(whole: ShardRange, places: Iterable[tuple[int, int]]) -> list[ShardRange]:
    parts = []
    offset, seq = whole.start_offset, whole.first_seq
    for next_offset, last_seq in places:
        if not (seq <= last_seq < whole.last_seq and offset < next_offset < whole.end_offset):
            raise Halt(
                f"shard {whole.shard}: the split at offset {next_offset}, seq {last_seq} lies "
                f"outside the batch: the checkpoint was edited"
            )
        parts.append(ShardRange(whole.shard, offset, next_offset, seq, last_seq))
        offset, seq = next_offset, last_seq + 1
    parts.append(ShardRange(whole.shard, offset, whole.end_offset, seq, whole.last_seq))
    return parts


def choose_splits(
    whole: ShardRange, bounds: Iterable[tuple[int, int]], rows_max: int
) -> list[tuple[int, int]]:
    """Choose bounds so that each task has at most `rows_max` rows, where the bounds allow it.

    `bounds`: (end offset, last seq) of Kafka transactions, ascending; none of them is split.
    """
    chosen: list[tuple[int, int]] = []
    begin_seq = whole.first_seq
    candidate: tuple[int, int] | None = None
    for offset, seq in bounds:
        if not whole.first_seq <= seq < whole.last_seq:
            continue
        if seq - begin_seq + 1 > rows_max and candidate is not None:
            chosen.append(candidate)
            begin_seq = candidate[1] + 1
        candidate = (offset, seq)
    if candidate is not None and whole.last_seq - begin_seq + 1 > rows_max:
        chosen.append(candidate)
    return chosen
