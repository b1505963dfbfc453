"""Where a stream, a query or a new log starts, as users write it: one parser, nothing guessed."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token import ClockUncertainty, ShardPosition, StreamPosition, UsageError
from spark_consumers.source.options import SourceOptions
from topics.kafka.client import ClientConfig
from topics.start.start_forms import (
    MICROSECONDS_MAX,
    MICROSECONDS_MIN,
    GtidStart,
    StartWord,
    parse_producer_start,
    parse_start,
    parse_time,
)
from topics.stream.subscriber import StreamSubscriber

TIME_US = 1_769_860_800_000_000
POSITION = StreamPosition(0, TIME_US, {"-": ShardPosition(7, 5, None)})
CONFIG = ClientConfig({"bootstrap.servers": "nowhere:1"})
SPARK = {"keyspace": "shop", "kafka.bootstrap.servers": "nowhere:1"}

AMBIGUOUS = {
    "20260101": "digits alone",
    "1769860800000": "digits alone",
    "1769860800000000": "digits alone",
    "us:1769860800000": r"as milliseconds it would be 2026-01-31T12:00:00Z",
    "us:1769860800": r"as seconds it would be 2026-01-31T12:00:00Z",
    "us:1769860800000000000": r"as nanoseconds it would be 2026-01-31T12:00:00Z",
    "us:20260101": "no number of microseconds",
    "us:-5": "followed by a number",
    "2026-01-31T12:00:00": "names no time zone",
    "2026-01-31 12:00": "names no time zone",
    "2026-01-31": "a date alone",
    "2026-01": "a date alone",
    "2026-13-01T12:00:00Z": "not an ISO 8601 time",
    "1969-12-31T23:59:59Z": "before 1970",
}
NOT_TEXT = (None, True, 1.5, b"earliest", date(2026, 1, 31), ["earliest"])

# Every place where a reader's start is written.
READERS: dict[str, Callable[[str], object]] = {
    "parser": parse_start,
    "Subscriber": lambda text: StreamSubscriber("shop", start=text, config=CONFIG),
    "Spark": lambda text: SourceOptions.parse({**SPARK, "start": text}),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", [*AMBIGUOUS, "", "Latest", "current", "gtid:0-1-5", "yesterday"])
def test_ambiguous_starts_are_refused_everywhere(reader: str, text: str) -> None:
    """A17: no reader guesses what digits or a time without a zone mean; each lists the forms."""
    with pytest.raises(UsageError, match=AMBIGUOUS.get(text, "not a stream position")) as refused:
        READERS[reader](text)

    assert "Accepted: earliest, latest, copy, a time with a zone (2026-01-31T12:00:00Z), " in str(
        refused.value
    )


@pytest.mark.parametrize(
    "text", [*AMBIGUOUS, "", "copy", "tail", "yesterday", "current", "timestamp:"]
)
def test_producers_read_times_the_same_way(text: str) -> None:
    """C4: `produce --from` has the words of the readers, and `gtid:` where they have a position."""
    with pytest.raises(UsageError, match="Accepted: earliest, latest, a time with a zone"):
        parse_producer_start(text)


def test_words() -> None:
    """C4: `latest` everywhere, and GTID sets for producers."""
    assert parse_start("copy") is StartWord.COPY
    assert parse_producer_start("latest") is StartWord.LATEST
    assert parse_producer_start("gtid:0-1-5") == GtidStart("0-1-5")


@pytest.mark.parametrize(
    "start",
    [
        TIME_US,
        f"us:{TIME_US}",
        "2026-01-31T12:00:00Z",
        "2026-01-31 13:00:00+01:00",
        "20260131T120000Z",
        datetime(2026, 1, 31, 12, tzinfo=UTC),
    ],
)
def test_one_time_in_every_form(start: str | int | datetime) -> None:
    """All forms of one moment are the same start."""
    assert parse_start(start) == TIME_US


@pytest.mark.parametrize("start", NOT_TEXT)
def test_other_types_are_one_clear_error(start: object) -> None:
    """A17: None, a float or a date is refused when the subscriber is made, by its type."""
    with pytest.raises(UsageError, match=f"^start .*type {type(start).__name__}. Accepted: "):
        parse_start(start)


def test_a_naive_datetime_is_refused() -> None:
    """A datetime without a zone may be of any zone."""
    with pytest.raises(UsageError, match="names no time zone"):
        parse_start(datetime(2026, 1, 31))  # noqa: DTZ001 - that is the point


@given(
    st.datetimes(datetime(1974, 1, 1), datetime(2200, 1, 1)),  # noqa: DTZ001 - zones follow
    st.integers(-14 * 60, 14 * 60),
)
def test_times_keep_their_microseconds(moment: datetime, minutes: int) -> None:
    """An aware time, its text in any zone and its number of microseconds are one start."""
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    time_us = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    for start in (aware, aware.isoformat(), aware.isoformat(" "), time_us, f"us:{time_us}"):
        assert parse_start(start) == time_us
    assert parse_time(aware.isoformat(), "--switched-at") == time_us


@given(st.integers(MICROSECONDS_MIN, MICROSECONDS_MAX))
def test_a_wrong_unit_is_never_taken(time_us: int) -> None:
    """A17: what is microseconds is no number of microseconds in any other unit."""
    for number in (time_us // 1_000_000, time_us // 1_000, time_us * 1_000):
        with pytest.raises(UsageError, match="no number of microseconds"):
            parse_start(number)


@given(st.text(max_size=30))
def test_any_other_text_is_refused(text: str) -> None:
    """Whatever stands there is a start or a UsageError, and digits alone never are a start."""
    try:
        found = parse_start(text)
    except UsageError:
        return
    assert not text.isdecimal()
    assert isinstance(found, StartWord) or "T" in text or " " in text or text.startswith("us:")


def test_positions_pass() -> None:
    """A position is a start as it is, and as its string."""
    assert parse_start(POSITION) is POSITION
    assert parse_start(POSITION.to_string()) == POSITION


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keyspace": None}, "keyspace None"),
        ({"key_range": None}, "key_range None is of type NoneType"),
        ({"mode": "strict"}, r"mode 'strict' is of type str: pass Strict\(\), MaxHold"),
        ({"mode": SimpleNamespace()}, r"pass Strict\(\), MaxHold"),
        ({"tables": "shop.orders"}, "tables 'shop.orders' is of type str: pass a list"),
        ({"tables": ["orders"]}, r"write it as database\.table"),
        ({"tables": [None]}, r"write it as database\.table"),
        ({"idle_timeout_s": "5"}, "idle_timeout_s '5' is of type str"),
        ({"idle_timeout_s": -1}, "idle_timeout_s -1"),
        ({"clock": 5_000}, "pass a ClockUncertainty"),
        ({"config": {"bootstrap.servers": "kafka:9092"}}, "pass a ClientConfig"),
    ],
)
def test_wrong_arguments_of_a_subscriber(arguments: dict[str, object], message: str) -> None:
    """A17: an argument of another type is refused by name before any connection is made."""
    good: dict[str, object] = {"keyspace": "shop", "start": "latest", "config": CONFIG}

    with pytest.raises(UsageError, match=message):
        StreamSubscriber(**(good | arguments))  # type: ignore[arg-type]


def test_spark_takes_the_clock_uncertainty() -> None:
    """Spark's options have the same two numbers as the settings."""
    clock = {"clockUncertaintyUs": "5000", "mariadbLongestStatementUs": "1000000"}

    assert SourceOptions.parse({**SPARK, **clock}).clock == ClockUncertainty(5_000, 1_000_000)
    with pytest.raises(UsageError, match="option clockuncertaintyus: '5ms'"):
        SourceOptions.parse({**SPARK, "clockUncertaintyUs": "5ms"})
