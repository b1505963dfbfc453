"""The cache keys that an application declares for its rows."""

from collections.abc import Iterator

import pytest

from event_token.errors import UsageError
from shardstream import CannotJudge, Halt, KeyMap, MissingColumn, Op, RowImage
from tests.caching.invalidating.log_events import row_event

KEYS = KeyMap()


@KEYS.of("shop.users", "shop.admins")
def _user(row: RowImage) -> Iterator[str]:
    yield f"user:{row['id']}"


@KEYS.of("shop.users")
def _email(row: RowImage) -> Iterator[str]:
    if row["email"] is not None:
        yield f"email:{row['email']}"


def test_both_images_are_mapped() -> None:
    """R15: a changed key names the old one and the new one, by every mapper of the table."""
    changed = row_event({"id": 1, "email": "a"}, {"id": 1, "email": "b"})

    assert KEYS.keys_of(changed) == {"user:1", "email:a", "email:b"}
    assert KEYS.keys_of(row_event(None, {"id": 2, "email": None})) == {"user:2"}
    assert KEYS.keys_of(row_event({"id": 3, "email": "c"}, None)) == {"user:3", "email:c"}
    assert KEYS.tables == {("shop", "users"), ("shop", "admins")}


def test_a_copied_row_counts_as_a_change() -> None:
    """A READ names the keys of its row: whether the cache has seen it is not known."""
    read = row_event(None, {"id": 2, "email": "d"})
    object.__setattr__(read, "op", Op.READ)

    assert KEYS.keys_of(read) == {"user:2", "email:d"}


def test_a_column_that_the_image_lacks_stops_by_name() -> None:
    """A mapper never guesses: a partial image names the column and the setting, also by `get`."""
    keys = KeyMap()
    keys.of("shop.users")(lambda row: [f"email:{row.get('email')}"])
    partial = row_event({"id": 1}, {"id": 1, "email": "b"})

    for each in (KEYS, keys):
        with pytest.raises(MissingColumn, match=r"lacks the column email.*binlog_row_image=FULL"):
            each.keys_of(partial)


def test_a_column_that_the_table_does_not_have() -> None:
    """A misspelt column is named with those that there are."""
    keys = KeyMap()
    keys.of("shop.users")(lambda row: [f"user:{row['user_id']}"])

    with pytest.raises(MissingColumn, match="lacks a column user_id; it has id, email"):
        keys.keys_of(row_event(None, {"id": 1, "email": "a"}))


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        (lambda row: [row["id"]], "gave 1, which is not a cache key"),
        (lambda row: [str(row["email"])], "gave '', which is not a cache key"),
        (lambda row: [row["email"].upper() + 1], "failed with TypeError"),
    ],
)
def test_a_faulty_mapper_stops_by_name(gives: object, message: str) -> None:
    """What a mapper does wrong names the transaction and the table."""
    keys = KeyMap()
    keys.of("shop.users")(gives)  # type: ignore[arg-type]

    with pytest.raises(Halt, match=f"3e11fa47.*shop.users {message}"):
        keys.keys_of(row_event(None, {"id": 1, "email": ""}))


def test_a_mapper_that_cannot_judge_says_so() -> None:
    """What a mapper cannot judge is left to the caller, which takes every value out of use."""
    keys = KeyMap()

    @keys.of("shop.users")
    def _(row: RowImage) -> Iterator[str]:
        if row["id"] == 0:
            raise CannotJudge("row 0 is part of every page")
        yield f"user:{row['id']}"

    assert keys.keys_of(row_event(None, {"id": 1, "email": ""})) == {"user:1"}
    with pytest.raises(CannotJudge, match="part of every page"):
        keys.keys_of(row_event(None, {"id": 0, "email": ""}))


def test_names_are_checked() -> None:
    """A table is named with its database."""
    with pytest.raises(UsageError, match=r"write it as database\.table"):
        KeyMap().of("users")
    with pytest.raises(UsageError, match="at least one table"):
        KeyMap().of()
