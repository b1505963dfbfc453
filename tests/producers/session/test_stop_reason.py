"""What a producer leaves when an error ends it."""

import pytest

from event_token.errors import Halt
from producers.errors import BinlogPurged, lost_advice, out_of_order_advice, skip_advice
from producers.session.shard_session import COMMAND_MAX, TEXT_MAX, stop_reason
from topics.names import ShardTopics

TOPICS = ShardTopics("commerce", "80-")
GTIDS = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-9,3e11fa47-71ca-11e1-9e33-c80aa9429563:5"


def test_a_reason_is_one_short_line_without_credentials() -> None:
    """The page shows it to everybody who may look at the fleet."""
    error = BinlogPurged("db-b:\n  gone; https://me:secret@registry/ says so " + "x" * 2 * TEXT_MAX)

    reason = stop_reason(error, 7)

    assert (reason.at_us, reason.error) == (7, "BinlogPurged")
    assert reason.text.startswith("db-b: gone; https://***@registry/ says so xxx")
    assert len(reason.text) == TEXT_MAX


@pytest.mark.parametrize(
    ("advice", "command"),
    [
        (skip_advice(TOPICS, "0-1-5"), "--gtid 0-1-5"),
        (skip_advice(TOPICS, "0-1-5", force=True), "--gtid 0-1-5 --force"),
        (lost_advice(TOPICS, GTIDS), f"--lost {GTIDS}"),
        (out_of_order_advice(TOPICS, "0-1-5"), "--gtid 0-1-5"),
    ],
)
def test_the_command_is_whole_where_the_text_is_cut(advice: str, command: str) -> None:
    """It is copied and typed, so a part of it would be worse than none."""
    reason = stop_reason(Halt("x" * TEXT_MAX + ". " + advice), 7)

    assert reason.command == f"shardstream skip commerce 80- {command} --reason TEXT"
    assert advice not in reason.text


def test_a_command_without_end_is_left_to_the_log() -> None:
    """The progress record has it in a header; a message without a command has none."""
    assert stop_reason(Halt(lost_advice(TOPICS, "x" * COMMAND_MAX)), 7).command == ""
    assert stop_reason(Halt("no way on"), 7).command == ""
