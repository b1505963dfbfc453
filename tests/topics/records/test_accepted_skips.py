"""What an operator accepts with --accept-skip: GTIDs, sets of them, or a reason."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token import UsageError
from topics.records.skip_record import (
    Skip,
    SkipKind,
    accept_advice,
    accepting_command,
    check_accepted,
    is_accepted,
)

UUID = "4c4b4a49-0000-11f0-8000-000000000001"
OTHER = "4c4b4a49-0000-11f0-8000-000000000002"


def statement(reason: str) -> str:
    """The text of a SKIP record."""
    return Skip(SkipKind.TRANSACTION, f"{UUID}:7", reason).to_json()


@pytest.mark.parametrize(
    ("accepted", "gtid", "expected"),
    [
        ([f"{UUID}:7"], f"{UUID}:7", True),
        ([f"{UUID}:5-9"], f"{UUID}:7", True),
        ([f"{UUID}:5-9"], f"{UUID}:6-8", True),
        ([f"{UUID}:5-6", f"{UUID}:7-9"], f"{UUID}:6-7", True),
        ([f"{UUID.upper()}:7"], f"{UUID}:7", True),
        ([f"{UUID}:5-9"], f"{UUID}:10", False),
        ([f"{UUID}:5-9"], f"{OTHER}:7", False),
        (["0-1-5,0-1-7"], "0-1-7", True),
        (["0-1-5,0-1-7"], "0-1-6", False),
        (["0-1-5", "1-1-2"], "0-1-5,1-1-2", True),
        (["reason:ticket 17"], f"{UUID}:7", True),
        (["reason:ticket"], f"{UUID}:7", False),
        (["ticket 17"], f"{UUID}:7", False),
        ([], f"{UUID}:7", False),
    ],
)
def test_a_skip_is_accepted_by_gtids_that_include_its_or_by_its_reason(
    accepted: list[str], gtid: str, expected: bool
) -> None:
    """Nothing else accepts it: a number of MariaDB does not stand for those before it."""
    assert is_accepted(accepted, gtid, statement("ticket 17")) is expected


def test_what_can_accept_nothing_is_refused() -> None:
    """A GTID that is none would be of no use, and the query would stop again."""
    check_accepted([f"{UUID}:5-9:12", "0-1-5,0-1-6", "reason:it's by hand, twice"])
    with pytest.raises(UsageError, match="--accept-skip 'ticket 17': name GTIDs, or reason:TEXT"):
        check_accepted(["ticket 17"])
    with pytest.raises(UsageError, match="--accept-skip 'reason:': name GTIDs, or reason:TEXT"):
        check_accepted(["reason:"])


def test_no_reason_accepts_no_statement() -> None:
    """An ALTER has no reason, so an empty one does not accept it."""
    assert not is_accepted(["reason:"], f"{UUID}:7", "")


def test_an_empty_reason_accepts_nothing() -> None:
    """A statement that changed values has no reason: it would accept them all."""
    assert not is_accepted(["reason:"], f"{UUID}:7", "")
    with pytest.raises(UsageError, match="--accept-skip 'reason:': name GTIDs, or reason:TEXT"):
        check_accepted(["reason:"])


@given(st.text(min_size=1, max_size=40))
def test_the_named_command_accepts_the_skip_whatever_the_reason(reason: str) -> None:
    """The whole command stands in the message's wake, and its last word accepts the skip."""
    text = statement(reason)
    message = f"an operator skipped {UUID}:7: {text}. Pass {accept_advice(f'{UUID}:7', text)}"
    arguments = ["state", "commerce", "--target", "a folder"]

    words = shlex.split(accepting_command(arguments, message))

    assert words[:-2] == ["shardstream", *arguments]
    assert words[-2] == "--accept-skip"
    assert is_accepted([words[-1]], f"{UUID}:7", text)


def test_the_named_command_holds_no_password() -> None:
    """A message may be kept where the command line was not."""
    arguments = ["database", "commerce", "--url", "postgresql://u:secret@db/x"]

    command = accepting_command(arguments, f"pass --accept-skip {UUID}:7")

    assert "secret" not in command
    assert "postgresql://u:***@db/x" in command
    assert accepting_command(arguments, "a message of something else") == ""
