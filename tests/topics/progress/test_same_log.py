"""Whether a log is the one of a position, by what it has below the position's offset."""

import pytest

from event_token import ShardPosition
from tests.topics.reading.shard_histories import History, HistoryTopics, LogOf
from topics.errors import LogShrank


@pytest.fixture
def history() -> History:
    """A log of three transactions."""
    made = History("-")
    for _ in range(3):
        made.commit([(1_000, 2)], 0)
    return made


def end_of(history: History) -> ShardPosition:
    """The position of a start at the log's end, which has no token."""
    last = history.progress[-1]
    return ShardPosition(last.end_offset, last.last_seq, None)


def check(topics: HistoryTopics, at: ShardPosition) -> None:
    """Raise what following the log from a position raises."""
    topics.result(topics.check_same_log(at, 0))


def test_rows_that_are_announced_and_not_readable_yet_are_waited_for(history: History) -> None:
    """The commit marker of progress may be there before that of the log: nothing was recreated."""
    at = end_of(history)
    first, second, _ = history.progress

    for end in (at.offset, second.end_offset, first.end_offset):
        check(HistoryTopics(history, LogOf(history, end=end)), at)


def test_what_a_position_has_read_must_be_below_it(history: History) -> None:
    """A log that was emptied, has another seq there, or ends before it is another one."""
    at = end_of(history)
    wrong_seq = ShardPosition(at.offset, at.seq - 1, None)
    beyond = ShardPosition(at.offset + 5, at.seq + 1, None)

    for position, said in ((wrong_seq, "is the last one below"), (beyond, "it ends with seq")):
        with pytest.raises(LogShrank, match=said):
            check(HistoryTopics(history), position)
    emptied = LogOf(history, start=history.progress[0].end_offset)
    early = ShardPosition(1, 5, None)
    with pytest.raises(LogShrank, match="it begins with seq"):
        check(HistoryTopics(history, emptied), early)
