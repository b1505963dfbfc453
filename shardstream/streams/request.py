"""What a client asks of a stream: the parameters and headers of its request, checked. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from event_token import KeyRange, StreamPosition
from event_token.errors import UsageError
from shardstream.stream_filter import Images, StreamFilter, parse_columns
from topics.names import check_reader_name
from topics.reading.followed_shards import check_shards
from topics.reading.planner import MaxHold, Strict, Unmerged
from topics.start.start_forms import ParsedStart, parse_start
from topics.stream.subscriber import ReadingMode, Table, checked_key_range, checked_tables


class RequestRefused(UsageError):  # noqa: N818 - named by what is done
    """Raised to answer a request with another status than 200.

    `status`: of HTTP. `retry_s`: when to ask again, if that may help. `earliest`: the position from
    which the stream can be read, where retention has passed the one that was asked for.
    """

    def __init__(
        self, status: int, sentence: str, *, retry_s: int | None = None, earliest: str | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.retry_s = retry_s
        self.earliest = earliest


class StreamFormat(StrEnum):
    """How a stream is written; the values are media types."""

    SSE = "text/event-stream"
    NDJSON = "application/x-ndjson"
    ARROW = "application/vnd.apache.arrow.stream"


# The parameters of a stream, with whether one may be given several times.
PARAMETERS: Final = {
    "start": False,
    "key_range": False,
    "table": True,
    "columns": False,
    "where": False,
    "images": False,
    "order": False,
    "max_hold_ms": False,
    "name": False,
    "ids": False,
}
# How an `Accept` says that any format will do; `curl` sends it.
_ANY: Final = frozenset(("", "*/*", "application/*"))


@dataclass(frozen=True, slots=True)
class RowChoice:
    """What a client gets of rows, as of `StreamFilter`; clients of one choice share its result."""

    columns: tuple[str, ...] = ()
    where: str | None = None
    images: Images = Images.BOTH

    def filter(self) -> StreamFilter:
        """Return a filter of its own for a thread. UsageError if the condition is not supported."""
        return StreamFilter(columns=self.columns, where=self.where, images=self.images)


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A stream as a client asked for it. `tables` None: all. `name`: reported on Kafka.

    `has_every_id`: each event has its position; otherwise only the last one of what is sent at a
    time.
    """

    keyspace: str
    key_range: KeyRange
    start: ParsedStart
    tables: frozenset[Table] | None
    rows: RowChoice
    mode: ReadingMode
    name: str | None
    format: StreamFormat
    has_every_id: bool

    @property
    def has_own_reader(self) -> bool:
        """Whether no other client can share its reader: a name and Arrow batches are a reader's."""
        return self.name is not None or self.format is StreamFormat.ARROW


def parse_request(
    keyspace: str, parameters: Iterable[tuple[str, str]], accept: str, last_event_id: str
) -> StreamRequest:
    """Return what a request asks for; `last_event_id` wins over the parameter `start`.

    RequestRefused: 400 for a parameter that is unknown, repeated or wrong, 406 for a format that is
    not served, 409 for a position of other shards.
    """
    given = _collected(parameters)
    single = {name: values[0] for name, values in given.items()}
    try:
        key_range = checked_key_range(single.get("key_range", "-"))
        start = parse_start(last_event_id or single.get("start", "latest"))
        tables = checked_tables(given.get("table"))
        name = single.get("name")
        if name is not None:
            check_reader_name(name)
        rows = _rows(single)
        mode = _mode(single.get("order", "merged"), single.get("max_hold_ms"))
    except RequestRefused:
        raise
    except UsageError as error:
        raise RequestRefused(400, str(error)) from error
    if isinstance(start, StreamPosition):
        try:
            check_shards(start, key_range)
        except UsageError as error:
            raise RequestRefused(409, str(error)) from error
    has_every_id = _one_of("ids", single.get("ids", "each"), ("each", "batch")) == "each"
    written = _format(accept)
    if written is StreamFormat.ARROW and rows != RowChoice():
        raise RequestRefused(400, "columns, where and images are not for Arrow batches")
    return StreamRequest(
        keyspace, key_range, start, tables, rows, mode, name, written, has_every_id
    )


def _collected(parameters: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    given: dict[str, list[str]] = {}
    for name, value in parameters:
        if name not in PARAMETERS:
            raise RequestRefused(
                400, f"unknown parameter {name!r}: a stream has {', '.join(PARAMETERS)}"
            )
        if name in given and not PARAMETERS[name]:
            raise RequestRefused(400, f"parameter {name} is given twice: give it once")
        given.setdefault(name, []).append(value)
    return given


def _rows(single: Mapping[str, str]) -> RowChoice:
    columns = single.get("columns")
    images = _one_of("images", single.get("images", Images.BOTH.value), tuple(Images))
    found = RowChoice(
        () if columns is None else parse_columns(columns), single.get("where"), Images(images)
    )
    found.filter()  # refuses what cannot be applied to any row
    return found


def _mode(order: str, max_hold_ms: str | None) -> ReadingMode:
    if _one_of("order", order, ("merged", "unmerged")) == "unmerged":
        if max_hold_ms is not None:
            raise RequestRefused(
                400, "max_hold_ms is for order=merged: unmerged waits for no shard"
            )
        return Unmerged()
    if max_hold_ms is None:
        return Strict()
    # Eleven digits are three years; int() refuses thousands of them by a ValueError.
    if not (max_hold_ms.isascii() and max_hold_ms.isdecimal() and len(max_hold_ms) < 12):
        raise RequestRefused(400, f"max_hold_ms {max_hold_ms!r}: give a number of milliseconds")
    return MaxHold(int(max_hold_ms))


def _one_of(name: str, given: str, values: tuple[str, ...]) -> str:
    if given not in values:
        raise RequestRefused(400, f"{name} {given!r}: give {' or '.join(values)}")
    return given


def _format(accept: str) -> StreamFormat:
    """Return the first format that an `Accept` names; NDJSON where any will do."""
    for part in accept.split(","):
        media_type = part.partition(";")[0].strip().lower()
        if media_type in _ANY:
            return StreamFormat.NDJSON
        if media_type in tuple(StreamFormat):
            return StreamFormat(media_type)
    raise RequestRefused(406, f"Accept {accept!r}: a stream comes as {', '.join(StreamFormat)}")
