"""A session's own writes in a cookie."""

import pytest

from caching.reading.own_writes import COOKIE_CHARS_MAX, ReadYourWrites
from event_token import EventToken, Flavor, UsageError, parse_gtid_set

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def token(shard: str, gtids: str, time_us: int | None = None) -> EventToken:
    flavor = Flavor.MYSQL if ":" in gtids else Flavor.MARIADB
    return EventToken(time_us, shard, parse_gtid_set(gtids, flavor))


def positions(session: ReadYourWrites) -> dict[str, str]:
    return {token.shard: str(token.position) for token in session}


def test_a_session_travels_in_a_cookie() -> None:
    """What was written comes back from the cookie; no cookie is a session without writes."""
    session = ReadYourWrites.from_cookie(None)
    session.wrote(token("-80", f"{SERVER}:5", 1_000))
    session.wrote(token("80-", "0-1-7"))

    found = ReadYourWrites.from_cookie(session.to_cookie())

    assert found.tokens == session.tokens
    assert positions(found) == {"-80": f"{SERVER}:5", "80-": "0-1-7"}
    assert ReadYourWrites.from_cookie(ReadYourWrites().to_cookie()).tokens == ()
    assert ReadYourWrites.from_cookie("").tokens == ()


def test_several_writes_of_a_shard_are_joined() -> None:
    """Reads have to hold all of them; an older or repeated one changes nothing."""
    session = ReadYourWrites([token("-", f"{SERVER}:5"), token("-", f"{SERVER}:9")])
    session.wrote(token("-", f"{OTHER}:1"))
    session.wrote(token("-", f"{SERVER}:5"))

    assert positions(session) == {"-": f"{SERVER}:5:9,{OTHER}:1"}

    mariadb = ReadYourWrites([token("-", "0-1-9"), token("-", "0-2-5"), token("-", "1-1-3")])

    assert positions(mariadb) == {"-": "0-2-5,1-1-3/0-1-9"}


def test_writes_of_a_split_shard_go_with_the_last_target() -> None:
    """The cookie keeps the source's write until writes on all targets are newer."""
    session = ReadYourWrites([token("-", f"{SERVER}:5", 1_000)])
    session.wrote(token("-80", f"{OTHER}:1", 2_000))
    assert set(positions(session)) == {"-", "-80"}

    session.wrote(token("80-", f"{OTHER}:2", 2_000))

    assert set(positions(session)) == {"-80", "80-"}


def test_a_write_of_a_lost_history_is_kept_until_it_is_forgotten() -> None:
    """No server holds both, so the next read says that a failover has lost one of them."""
    session = ReadYourWrites([token("-", "0-1-9"), token("-", "0-1-7,0-2-9")])

    assert positions(session) == {"-": "0-1-9/0-1-7,0-2-9"}
    assert ReadYourWrites.from_cookie(session.to_cookie()).tokens == session.tokens

    session.forget(session.tokens[0])

    assert session.tokens == ()


@pytest.mark.parametrize(
    "text",
    [
        "garbage",
        "=",
        "\0",
        "é",
        token("-", f"{SERVER}:5").to_string(),
        ReadYourWrites([token("-", f"{SERVER}:5")]).to_cookie()[:-1],
        "A" * (COOKIE_CHARS_MAX + 1),
    ],
)
def test_garbage_in_a_cookie_is_one_clear_error(text: str) -> None:
    """Whatever a client sends, it is a UsageError that says what it is not."""
    with pytest.raises(UsageError, match="not a cookie of ReadYourWrites"):
        ReadYourWrites.from_cookie(text)


def test_a_cookie_has_a_limit() -> None:
    """Beyond it the session says so instead of losing a write."""
    session = ReadYourWrites()
    for number in range(0x10, 0x60):
        session.wrote(token(f"{number:x}-{number + 1:x}", f"{SERVER}:1-{number}"))

    with pytest.raises(UsageError, match="on 80 shards take"):
        session.to_cookie()
