"""What a request for a stream may say."""

import pytest

from shardstream.streams.request import RequestRefused, StreamFormat, StreamRequest, parse_request
from topics.reading.planner import MaxHold, Strict, Unmerged
from topics.start.start_forms import StartWord

SSE = "text/event-stream"


def parsed(*parameters: tuple[str, str], accept: str = SSE) -> StreamRequest:
    return parse_request("commerce", parameters, accept, "")


def test_what_a_request_without_parameters_means() -> None:
    """All of the keyspace, from now on, merged."""
    found = parsed()

    assert (found.start, str(found.key_range), found.tables) == (StartWord.LATEST, "-", None)
    assert (found.mode, found.name, found.has_every_id) == (Strict(), None, True)


def test_parameters() -> None:
    """Each parameter reaches the reader; tables add up."""
    found = parsed(
        ("start", "us:1769860800000000"),
        ("key_range", "-80"),
        ("table", "a.b"),
        ("table", "`c.d`.`e`"),
        ("max_hold_ms", "500"),
        ("name", "billing"),
        ("ids", "batch"),
    )

    assert (found.start, str(found.key_range)) == (1769860800000000, "-80")
    assert found.tables == frozenset((("a", "b"), ("c.d", "e")))
    assert (found.mode, found.name, found.has_every_id) == (MaxHold(500), "billing", False)
    assert found.has_own_reader
    assert parsed(("order", "unmerged")).mode == Unmerged()


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", StreamFormat.NDJSON),
        ("*/*", StreamFormat.NDJSON),
        ("text/event-stream", StreamFormat.SSE),
        ("text/html, Text/Event-Stream;q=0.9, */*", StreamFormat.SSE),
        ("application/vnd.apache.arrow.stream", StreamFormat.ARROW),
    ],
)
def test_formats(accept: str, expected: StreamFormat) -> None:
    """The first format that the client takes is served."""
    assert parsed(accept=accept).format is expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("colour", "red"),
        ("where", "id >"),
        ("columns", "id,,x"),
        ("images", "some"),
        ("start", "1769860800"),
        ("start", ""),
        ("key_range", "80"),
        ("table", ""),
        ("order", "random"),
        ("max_hold_ms", "-1"),
        ("max_hold_ms", "1e3"),
        ("max_hold_ms", "9" * 5_000),
        ("name", "a b"),
        ("ids", ""),
    ],
)
def test_wrong_parameters(name: str, value: str) -> None:
    """One sentence says which parameter is wrong."""
    with pytest.raises(RequestRefused, match="(?i)" + name.replace("_", ".")) as refused:
        parsed((name, value))

    assert refused.value.status == 400


def test_contradictions() -> None:
    """What excludes each other, and what may stand once only."""
    for given in (
        (("order", "unmerged"), ("max_hold_ms", "1")),
        (("name", "a"), ("name", "b")),
    ):
        with pytest.raises(RequestRefused) as refused:
            parsed(*given)
        assert refused.value.status == 400
    with pytest.raises(RequestRefused) as refused:
        parsed(accept="image/png")
    assert refused.value.status == 406
