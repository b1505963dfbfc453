import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.errors import TargetConflict
from sinks.rule.homes import Version, add_version, live_homes
from sinks.same_keys import SameKey
from sinks.table_topics.moves import MoveAction, RecentHomes, RecordPlace

KEY = ("shop.orders", '{"id":1}')
A, B = b"\x10", b"\x90"
SHARDS = {A: "-80", B: "80-"}


def version(home: bytes, seq: int, *, live: bool = True) -> Version:
    """What a change of one home leaves; seqs are also times and offsets."""
    return Version(SHARDS[home], seq, seq, home, seq if live else None)


def fates(*changes: tuple[Version, bool]) -> list[MoveAction | RecordPlace]:
    """Decide changes (version, is it an INSERT), each after a trip through a marker."""
    stored: tuple[object, ...] = ()
    found = []
    for change, is_insert in changes:
        homes = RecentHomes(stored)
        found.append(homes.decide(KEY, [change], is_insert=is_insert))
        stored = homes.to_json()
    return found


def test_a_delete_on_the_shard_that_a_row_left_is_left_out() -> None:
    """The row lives on the other shard, and so does its record in the topic."""
    found = fates((version(B, 108), True), (version(A, 119, live=False), False))

    assert found == [MoveAction.WRITE, MoveAction.LEAVE_OUT]


def test_a_delete_of_the_visible_home_brings_the_other_row_back() -> None:
    """Inserted on both, changed on the first, deleted there: the second shard's row is current."""
    found = fates(
        (version(A, 100), True),
        (version(B, 108), True),
        (version(A, 113), False),
        (version(A, 119, live=False), False),
    )

    assert found[-1] == RecordPlace("80-", 108)
    assert found[:-1] == [MoveAction.WRITE] * 3


def test_an_ordinary_delete_is_written() -> None:
    """The key has had one home only."""
    found = fates((version(A, 100), True), (version(A, 119, live=False), False))

    assert found == [MoveAction.WRITE, MoveAction.WRITE]


def test_changes_of_keys_without_a_recent_insert_are_not_remembered() -> None:
    """Only an INSERT can begin a move, so updates take no memory."""
    homes = RecentHomes()

    decided = homes.decide(KEY, [version(A, 1)], is_insert=False)

    assert (decided, homes.to_json()) == (MoveAction.WRITE, ())


def test_what_is_older_than_the_window_is_forgotten() -> None:
    """The window counts from a key's last change."""
    homes = RecentHomes()
    homes.decide(KEY, [version(A, 100)], is_insert=True)
    homes.decide(KEY, [version(A, 200)], is_insert=False)

    homes.forget_before(200)
    assert homes.knows(KEY)
    homes.forget_before(201)
    assert not homes.knows(KEY)


def test_too_many_keys_stop_and_name_the_ways_on() -> None:
    """The marker of a task stays small."""
    homes = RecentHomes()
    for i in range(3):
        homes.decide(("shop.orders", str(i)), [version(A, 100)], is_insert=True)

    homes.check_number(3, "task 0")
    with pytest.raises(TargetConflict, match=r"shop\.orders.*--moves-max.*--move-window"):
        homes.check_number(2, "task 0")


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.sampled_from("iud")), max_size=14))
def test_the_topic_ends_with_the_visible_row(steps: list[tuple[bytes, str]]) -> None:
    """Whatever two shards do to their rows of a key, the record is that of the newest live home."""
    alive: set[bytes] = set()
    topic: object = None
    truth: list[Version] = []
    stored: tuple[object, ...] = ()
    for seq, (home, op) in enumerate(steps, 1):
        if (op == "i") == (home in alive):
            continue  # no shard inserts a row that it has, or changes one that it has not
        alive ^= {home} if op in "id" else set()
        change = version(home, seq, live=op != "d")
        add_version(truth, change)
        homes = RecentHomes(stored)
        decided = homes.decide(KEY, [change], is_insert=op == "i")
        stored = homes.to_json()
        if decided is MoveAction.WRITE:
            topic = change.row
        elif isinstance(decided, RecordPlace):
            topic = decided.offset

    live = live_homes(truth)
    assert topic == (live[0].row if live else None)


def test_a_key_that_stays_on_two_shards_is_named_once_the_window_is_over() -> None:
    """Its rows are no move: they are not forgotten, until one of them is deleted."""
    homes = RecentHomes()
    homes.decide(KEY, [version(A, 100)], is_insert=True)
    homes.decide(KEY, [version(B, 108)], is_insert=True)

    assert homes.same_keys(108) == []
    homes.forget_before(200, but_same_keys=True)
    homes = RecentHomes(homes.to_json())
    assert homes.same_keys(200) == [SameKey(*KEY, ("-80", "80-"))]
    homes.decide(KEY, [version(A, 300, live=False)], is_insert=False)
    assert homes.same_keys(400) == []
    homes.forget_before(400, but_same_keys=True)
    assert homes.to_json() == ()
