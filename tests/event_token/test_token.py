"""Event tokens as opaque strings: round trips, tampering, and what cannot be a token."""

import pickle
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_token import (
    ClockUncertainty,
    EventToken,
    Flavor,
    MysqlGtidSet,
    StreamPosition,
    TokenError,
    UsageError,
    parse_gtid_set,
)
from event_token.opaque import FieldWriter, seal
from event_token.token import TOKEN_VERSION, write_token
from tests.event_token.strategies import URL_SAFE, event_tokens

POSITION = parse_gtid_set("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5", Flavor.MYSQL)
NATIVE = EventToken(1_700_000_000_000_001, "-80", POSITION)


@given(event_tokens)
def test_string_round_trip(token: EventToken) -> None:
    """A token comes back from its string, and the string is safe in a URL as it stands."""
    text = token.to_string()

    assert EventToken.from_string(text) == token
    assert EventToken.from_string(text).to_string() == text
    assert quote(text, safe="") == text


@given(event_tokens, st.data())
def test_one_changed_character_is_refused(token: EventToken, data: st.DataObject) -> None:
    """Whatever one character is changed to, the string is no token any more."""
    text = token.to_string()
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(URL_SAFE).filter(lambda letter: letter != text[at]))

    with pytest.raises(TokenError):
        EventToken.from_string(text[:at] + other + text[at + 1 :])


def test_every_change_of_the_last_character_is_refused() -> None:
    """The last character's spare bits, which no checksum covers, may not be changed either."""
    for shard in ("-8", "-80", "-800"):
        text = EventToken(1, shard, POSITION).to_string()
        for letter in set(URL_SAFE) - {text[-1]}:
            with pytest.raises(TokenError):
                EventToken.from_string(text[:-1] + letter)


@given(event_tokens, st.data())
def test_truncated_is_refused(token: EventToken, data: st.DataObject) -> None:
    """A string that was cut off, or has something added, is no token."""
    text = token.to_string()

    with pytest.raises(TokenError):
        EventToken.from_string(text[: data.draw(st.integers(0, len(text) - 1))])
    with pytest.raises(TokenError):
        EventToken.from_string(text + data.draw(st.text(URL_SAFE + "=\n ", min_size=1)))


@given(st.text(max_size=60))
def test_any_other_text_is_refused(text: str) -> None:
    """Whatever it is handed, the parser answers with TokenError, a UsageError."""
    with pytest.raises(TokenError):
        EventToken.from_string(text)


@given(st.binary(max_size=40))
def test_sound_frame_with_broken_fields_is_refused(fields: bytes) -> None:
    """Fields that make no sense behind a right checksum raise TokenError, or make a token."""
    try:
        token = EventToken.from_string(seal(TOKEN_VERSION, fields))
    except TokenError:
        return
    assert EventToken.from_string(token.to_string()) == token


@given(event_tokens, st.binary(min_size=1, max_size=4))
def test_bytes_after_the_last_field_are_refused(token: EventToken, more: bytes) -> None:
    """D11: a token followed by further fields is from a later version, and not read as if not."""
    writer = FieldWriter()
    write_token(writer, token)

    with pytest.raises(TokenError, match=f"{len(more)} unexpected bytes"):
        EventToken.from_string(seal(TOKEN_VERSION, writer.getvalue() + more))


@pytest.mark.parametrize("flag", [8, 16, 64, 128, 2**63])
@pytest.mark.parametrize("is_origin", [False, True])
def test_unknown_flags_are_refused(flag: int, is_origin: bool) -> None:
    """D11: a flag that this version does not know may change the fields, so it is refused."""
    writer = FieldWriter()
    flags = [1 | 2, 1 | flag] if is_origin else [1 | flag]
    for each in flags:
        writer.unsigned(each)
        writer.unsigned(5)
        writer.text("-80")
        writer.text("")

    with pytest.raises(TokenError, match=f"unknown flags {1 | flag}"):
        EventToken.from_string(seal(TOKEN_VERSION, writer.getvalue()))


def test_an_origin_with_an_origin_is_refused() -> None:
    """D11: the flag for an origin is unknown in an origin."""
    writer = FieldWriter()
    for flags in (1 | 2, 1 | 2, 1):
        writer.unsigned(flags)
        writer.unsigned(5)
        writer.text("-80")
        writer.text("")

    with pytest.raises(TokenError, match="unknown flags 3"):
        EventToken.from_string(seal(TOKEN_VERSION, writer.getvalue()))


def test_other_version_is_refused_by_name() -> None:
    """A string of another layout says so, rather than being read wrong."""
    with pytest.raises(TokenError, match="version byte is 66"):
        EventToken.from_string(seal(TOKEN_VERSION + 1, b""))
    with pytest.raises(TokenError, match="version byte"):
        EventToken.from_string(StreamPosition(0, 0).to_string())


def test_layout_does_not_drift() -> None:
    """Tokens lie in logs, caches and checkpoints: their strings must stay readable."""
    replicated = EventToken(
        2,
        "80-",
        parse_gtid_set("0-1-7", Flavor.MARIADB),
        EventToken(1, "-", parse_gtid_set("1-2-3", Flavor.MARIADB)),
    )

    assert NATIVE.to_string() == (
        "QQGBgPnAwcSCAwMtODAoM2UxMWZhNDctNzFjYS0xMWUxLTllMzMtYzgwYWE5NDI5NTYyOjEtNX05s1M"
    )
    assert replicated.to_string() == "QQcCAzgwLQUwLTEtNwUBAS0FMS0yLTOVIb7P"


def test_effective_is_the_origin_where_there_is_one() -> None:
    """What a target replicated counts as the source's change."""
    replicated = EventToken(2, "80-", POSITION, origin=NATIVE)

    assert replicated.effective is NATIVE
    assert NATIVE.effective is NATIVE


def test_origin_has_no_origin() -> None:
    """A token goes back one level only."""
    replicated = EventToken(2, "80-", POSITION, origin=NATIVE)

    with pytest.raises(TokenError, match="has an origin itself"):
        EventToken(3, "80-c0", POSITION, origin=replicated)


@pytest.mark.parametrize(
    ("timestamp_us", "shard"), [(-1, "-"), (2**63, "-"), (0, ""), (0, "x" * 250)]
)
def test_impossible_tokens(timestamp_us: int, shard: str) -> None:
    """A time before the epoch and a shard without a usable name raise TokenError."""
    with pytest.raises(TokenError):
        EventToken(timestamp_us, shard, MysqlGtidSet())


def test_text_that_utf8_cannot_hold() -> None:
    """A shard name with half a character is refused when the string is made."""
    with pytest.raises(TokenError, match="UTF-8"):
        EventToken(0, "\ud800", MysqlGtidSet()).to_string()


@given(event_tokens)
def test_tokens_are_values(token: EventToken) -> None:
    """A token is hashable and survives pickling, as Spark needs."""
    copy = pickle.loads(pickle.dumps(token))  # noqa: S301 - our own bytes

    assert copy == token
    assert hash(copy) == hash(token)


def test_a_time_may_be_behind_by_clock_and_statement() -> None:
    """MariaDB's times are those of the beginning of a statement, on a clock that may be late."""
    clock = ClockUncertainty(uncertainty_us=5, mariadb_longest_statement_us=7)

    assert clock.behind_us == 12


def test_negative_uncertainty_is_refused() -> None:
    """A clock cannot be better than perfect."""
    with pytest.raises(UsageError):
        ClockUncertainty(uncertainty_us=-1)
    with pytest.raises(UsageError):
        ClockUncertainty(mariadb_longest_statement_us=-1)
