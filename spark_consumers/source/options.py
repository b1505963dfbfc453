"""Options of `spark.read` and `spark.readStream` with format `shardstream` (docs/reader-api.md)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from event_token import ClockUncertainty, KeyRange
from event_token.errors import UsageError
from sinks.resume import Origin
from topics.arrow.key_scope import KeyScope
from topics.kafka.client import ClientConfig
from topics.names import check_keyspace, check_reader_name
from topics.reading.planner import MaxHold, Mode, Strict
from topics.start.start_forms import ParsedStart, StartWord, parse_start

KAFKA_PREFIX = "kafka."
# A micro-batch of this size takes one or two seconds on two cores and a few hundred megabytes over
# all tasks; smaller batches pay Spark's fixed cost of about 0.1 s more often.
ROWS_PER_BATCH_DEFAULT = 500_000
# Each task pays for a consumer seek, which costs more than it saves on smaller ranges.
ROWS_PER_TASK_DEFAULT = 250_000
KNOWN_OPTIONS = frozenset(
    {
        "keyspace",
        "registryurl",
        "keyrange",
        "keyscope",
        "table",
        "columns",
        "start",
        "end",
        "maxrowsperbatch",
        "mode",
        "name",
        "maxholdms",
        "maxrowspertask",
        "clockuncertaintyus",
        "mariadblongeststatementus",
        "path",  # Spark passes the argument of load() by this name; this format takes none
    }
)
_TABLE = re.compile(r"([^.]+)\.(.+)")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Checked options."""

    keyspace: str
    kafka: ClientConfig
    registry_url: str | None
    key_range: KeyRange
    table: tuple[str, str] | None
    columns: str | None
    start: ParsedStart | None
    end: ParsedStart | None
    max_rows_per_batch: int
    mode: Mode
    max_rows_per_task: int
    clock: ClockUncertainty
    name: str | None = None
    key_scope: KeyScope = KeyScope.KEYSPACE

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Parse options, whose names ignore case; UsageError names the first bad one."""
        lower = {name.lower(): text for name, text in options.items()}
        unknown = sorted(
            name
            for name in lower
            if name not in KNOWN_OPTIONS and not name.startswith(KAFKA_PREFIX)
        )
        if unknown:
            raise UsageError(
                f"format shardstream: unknown options {', '.join(unknown)}; known options are "
                f"{', '.join(sorted(KNOWN_OPTIONS - {'path'}))} and kafka.*"
            )
        if "keyspace" not in lower:
            raise UsageError("format shardstream: option keyspace is missing")
        return cls(
            keyspace=check_keyspace(lower["keyspace"]),
            kafka=ClientConfig(
                {
                    name[len(KAFKA_PREFIX) :]: text
                    for name, text in lower.items()
                    if name.startswith(KAFKA_PREFIX)
                }
            ),
            registry_url=lower.get("registryurl"),
            key_range=KeyRange.parse(lower.get("keyrange", "-")),
            table=_table(lower.get("table")),
            columns=lower.get("columns"),
            start=_start(lower, "start", tuple(StartWord)),
            end=_start(lower, "end", (StartWord.LATEST,)),
            max_rows_per_batch=_count(lower, "maxrowsperbatch", ROWS_PER_BATCH_DEFAULT),
            mode=_mode(lower),
            max_rows_per_task=_count(lower, "maxrowspertask", ROWS_PER_TASK_DEFAULT),
            clock=ClockUncertainty(
                _microseconds(lower, "clockuncertaintyus"),
                _microseconds(lower, "mariadblongeststatementus"),
            ),
            name=check_reader_name(lower["name"]) if "name" in lower else None,
            key_scope=_key_scope(lower.get("keyscope", KeyScope.KEYSPACE)),
        )

    @property
    def origin(self) -> Origin:
        """The stream that a sink's target keeps as its own."""
        return Origin(self.keyspace, str(self.key_range), self.key_scope)


def _table(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    found = _TABLE.fullmatch(text)
    if found is None:
        raise UsageError(f"option table: {text!r} is not database.table")
    return found[1], found[2]


def _start(lower: Mapping[str, str], name: str, words: tuple[StartWord, ...]) -> ParsedStart | None:
    text = lower.get(name)
    return None if text is None else parse_start(text, f"option {name}", words)


def _count(lower: Mapping[str, str], name: str, default: int) -> int:
    text = lower.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"option {name}: {text!r} is not a positive number of rows")
    return int(text)


def _key_scope(text: str) -> KeyScope:
    try:
        return KeyScope(text)
    except ValueError:
        raise UsageError(f"option keyScope: {text!r} is not {' or '.join(KeyScope)}") from None


def _microseconds(lower: Mapping[str, str], name: str) -> int:
    text = lower.get(name, "0")
    if not text.isdecimal():
        raise UsageError(f"option {name}: {text!r} is not a number of microseconds")
    return int(text)


def _mode(lower: Mapping[str, str]) -> Mode:
    mode = lower.get("mode", "strict")
    hold = lower.get("maxholdms")
    if mode == "strict" and hold is None:
        return Strict()
    if mode == "max_hold" and hold is not None and hold.isdecimal():
        return MaxHold(int(hold))
    raise UsageError(
        "options mode and maxHoldMs: set mode=strict alone, or mode=max_hold with maxHoldMs"
    )
