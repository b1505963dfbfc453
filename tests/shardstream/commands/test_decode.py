"""`shardstream decode`: tokens and positions as people read them, without settings or servers."""

import json

import pytest

from caching.reading.own_writes import ReadYourWrites
from event_token import EventToken, MariadbGtidSet, MysqlGtidSet, ShardPosition, StreamPosition
from tests.shardstream.command_line import run

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
AT_US = 1_769_860_800_123_456
AT = "2026-01-31T12:00:00.123456Z"
SOURCE = EventToken(AT_US, "80-", MysqlGtidSet.parse(f"{UUID}:1-5"))
TARGET = EventToken(None, "80-c0", MariadbGtidSet.parse("0-1-7"), SOURCE)
POSITION = StreamPosition(
    1, AT_US, {"-80": ShardPosition(4_321, 4_000, SOURCE), "80-": ShardPosition(0, 0, None)}
)


def words(*arguments: str) -> str:
    """What the command prints, with single spaces."""
    done = run("decode", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return " ".join(done.stdout.split())


def test_a_token_is_shown() -> None:
    """Its shard, time and GTIDs, and where a replicated change was first committed."""
    assert words(SOURCE.to_string()) == (f"event token of shard 80- time {AT} GTIDs {UUID}:1-5")
    assert words(f" {TARGET.to_string()}\n") == (
        "event token of shard 80-c0 time no time GTIDs 0-1-7 "
        f"first committed on 80- at {AT} GTIDs there {UUID}:1-5"
    )


def test_a_position_is_shown() -> None:
    """The time up to which everything was read, and where each shard goes on."""
    shown = words(POSITION.to_string())

    assert shown.startswith(f"stream position, epoch 1, read before {AT}")
    assert f"4,321 4,000 {AT}" in shown


def test_both_are_objects_with_json() -> None:
    """One object per line, for programs."""
    token = json.loads(words(TARGET.to_string(), "--json"))
    position = json.loads(words(POSITION.to_string(), "--json"))

    assert (token["kind"], token["shard"], token["time"]) == ("token", "80-c0", None)
    assert token["origin"]["gtids"] == f"{UUID}:1-5"
    assert (position["kind"], position["frontier"]) == ("position", AT)
    assert position["shards"]["-80"]["offset"] == 4_321
    assert position["shards"]["80-"]["token"] is None


@pytest.mark.parametrize(
    "text", ["earliest", SOURCE.to_string()[:-3], ReadYourWrites([SOURCE]).to_cookie()]
)
def test_anything_else_is_one_sentence(text: str) -> None:
    """Status 2, one line, no traceback."""
    done = run("decode", text)

    assert (done.returncode, done.stdout) == (2, "")
    assert " ".join(done.stderr.split()).startswith(
        "error: neither an event token nor a stream position: "
    )
    assert "Traceback" not in done.stderr
