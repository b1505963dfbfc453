"""What the events of a shard log do to a cache."""

import pytest

from caching.invalidating.effects import AllFloors, Failovers, FloorAction, KeyChanges, effect_of
from caching.key_map import CannotJudge, KeyMap
from caching.stores.store import KeyChange
from event_token import ShardPosition, StreamPosition
from tests.caching.invalidating.log_events import OTHER_UUID, UUID, row_event, statement_event
from topics.records.vevent import EventType

KEYS = KeyMap()
KEYS.of("shop.users")(lambda row: [f"user:{row['id']}"])


def test_a_row_changes_its_keys() -> None:
    """Each key of both images once, with the change's token."""
    event = row_event({"id": 1}, {"id": 2})

    assert effect_of(event, KEYS) == KeyChanges(
        (KeyChange("user:1", event.token), KeyChange("user:2", event.token))
    )


def test_what_a_mapper_cannot_judge_changes_every_floor() -> None:
    """Rule 13: all values are taken out of use, and the reason is told."""
    keys = KeyMap()

    @keys.of("shop.users")
    def _(_row: object) -> list[str]:
        raise CannotJudge("a template changed")

    effect = effect_of(row_event(None, {"id": 1}), keys)

    assert isinstance(effect, AllFloors)
    assert effect.every is FloorAction.RENEW
    assert "a template changed" in effect.reason


@pytest.mark.parametrize(
    ("statement", "concerns"),
    [
        ("TRUNCATE TABLE `users`", True),
        ("alter table Shop.Users drop column email", True),
        ("DROP TABLE IF EXISTS other, users", True),
        ("RENAME TABLE users TO users_old, users_new TO users", True),
        ("DROP DATABASE shop", True),
        ('TRUNCATE "users"', True),
        ("ALTER TABLE users_old ADD COLUMN x INT", False),
        ("CREATE DATABASE shop", False),
        ("DROP DATABASE shop2", False),
        ("CREATE TABLE t (a INT) /* users */", False),
    ],
)
def test_ddl_on_a_mapped_table(statement: str, concerns: bool) -> None:
    """H10: whatever names a mapped table, or drops its database, takes all values out of use."""
    effect = effect_of(statement_event(EventType.DDL, statement), KEYS)

    assert isinstance(effect, AllFloors) is concerns
    if isinstance(effect, AllFloors):
        assert effect.every is FloorAction.RENEW


def test_a_skip_changes_every_floor() -> None:
    """What a skipped transaction changed is not known, so no value stays in use."""
    skip = {"kind": "transaction", "gtids": f"{UUID}:5", "reason": "a broken event"}

    effect = effect_of(statement_event(EventType.SKIP, skip), KEYS)

    assert isinstance(effect, AllFloors)
    assert effect.every is FloorAction.RENEW
    assert f"{UUID}:5 was skipped (a broken event)" in effect.reason


@pytest.mark.parametrize("kind", ["BEGIN", "END", "CANCELLED"])
def test_begin_is_a_change_of_every_bucket(kind: str) -> None:
    """Rule 12: BEGIN raises all floors; END and CANCELLED change nothing."""
    effect = effect_of(statement_event(EventType.JOURNAL, {"kind": kind, "reshard_id": "r1"}), KEYS)

    assert isinstance(effect, AllFloors) is (kind == "BEGIN")
    if isinstance(effect, AllFloors):
        assert effect.every is FloorAction.RAISE


def test_marks_of_copies_change_nothing() -> None:
    """The rows of a copy are events of their own."""
    assert effect_of(statement_event(EventType.LAST_PK, "{}"), KEYS) == KeyChanges(())


def seen_before(gtids: str) -> StreamPosition:
    """A position whose token has these GTIDs."""
    token = row_event(None, {"id": 1}, gtid=gtids).token
    return StreamPosition(0, 0, {"-80": ShardPosition(1, 1, token)})


@pytest.mark.parametrize(
    ("before", "gtids", "renewals"),
    [
        (None, [f"{UUID}:1", f"{UUID}:2"], [False, False]),
        (None, [f"{UUID}:1", f"{OTHER_UUID}:1", f"{OTHER_UUID}:2"], [False, True, False]),
        (None, [f"{UUID}:1", f"{OTHER_UUID}:tag:1", f"{UUID}:2"], [False, True, True]),
        (f"{UUID}:1-5", [f"{UUID}:6"], [False]),
        (f"{UUID}:1-5", [f"{OTHER_UUID}:1", f"{OTHER_UUID}:2"], [True, False]),
        ("0-1-5", ["0-1-6", "0-2-7", "0-2-8"], [False, True, False]),
        ("0-1-5,1-9-3", ["1-9-4", "0-1-6", "1-8-5"], [False, False, True]),
        ("0-1-3,0-2-8", ["0-2-9", "0-1-10"], [False, True]),
        ("0-1-3,0-2-8", ["0-1-9", "0-1-10"], [True, False]),
        (None, ["", "0-1-6"], [False, False]),
    ],
)
def test_another_server_that_writes_a_shard(
    before: str | None, gtids: list[str], renewals: list[bool]
) -> None:
    """Each change of the server that writes is noticed once, also over a restart."""
    failovers = Failovers(StreamPosition(0, 0) if before is None else seen_before(before))
    events = [row_event(None, {"id": 1}, gtid=gtid or f"{UUID}:1") for gtid in gtids]
    for event, gtid in zip(events, gtids, strict=True):
        object.__setattr__(event, "gtid", gtid)

    found = [failovers.notice(event) for event in events]

    assert [each is not None for each in found] == renewals
    assert all(each.every is FloorAction.RENEW for each in found if each)
