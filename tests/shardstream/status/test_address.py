"""Where HTTP is served and who may ask, refused before anything is started."""

from pathlib import Path

import pytest

from event_token import UsageError
from shardstream.status.address import Address, access_token


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback"),
    [
        ("127.0.0.1:9644", "127.0.0.1", 9644, True),
        ("127.9.9.9:1", "127.9.9.9", 1, True),
        ("[::1]:0", "::1", 0, True),
        ("localhost:80", "localhost", 80, True),
        ("192.0.2.1:9644", "192.0.2.1", 9644, False),
        ("[::]:9644", "::", 9644, False),
        ("db.example.com:65535", "db.example.com", 65535, False),
    ],
)
def test_an_address_is_parsed(text: str, host: str, port: int, *, is_loopback: bool) -> None:
    """Names, IPv4 and IPv6; only addresses of the machine itself are loopback."""
    address = Address.parse(text)

    assert address == Address(host, port)
    assert str(address) == text
    assert address.is_loopback is is_loopback


@pytest.mark.parametrize(
    "text", ["", "9644", ":9644", "host:", "host:x", "host:65536", "host:-1", "::1:9644", "[]:1"]
)
def test_a_bad_address_is_refused(text: str) -> None:
    """The message shows how an address is written."""
    with pytest.raises(UsageError, match="give HOST:PORT"):
        Address.parse(text)


def test_a_port_in_use_is_refused() -> None:
    """A second process is told which address another one has."""
    with Address("127.0.0.1", 0).listen() as first:
        taken = Address("127.0.0.1", 0).bound(first)
        assert taken.port > 0
        with pytest.raises(UsageError, match=f"127.0.0.1:{taken.port}: cannot listen there"):
            taken.listen()


def test_a_host_that_is_not_here_is_refused() -> None:
    """An address of another machine cannot be listened on."""
    with pytest.raises(UsageError, match="cannot listen there"):
        Address("192.0.2.1", 0).listen()


def test_other_machines_need_a_token_or_a_word(tmp_path: Path) -> None:
    """Loopback is open; anything else is, if the operator says so or gives a token."""
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    local, public = Address("127.0.0.1", 1), Address("192.0.2.1", 1)

    assert access_token(local, None, is_open=False) is None
    assert access_token(public, None, is_open=True) is None
    token = access_token(public, path, is_open=False)
    assert token is not None
    assert token() == "0123456789abcdef"
    path.write_text("short")
    assert token() is None
    path.write_text("another-token-of-16\n")
    assert token() == "another-token-of-16"
    path.unlink()
    assert token() is None
    with pytest.raises(UsageError, match="--auth-token-file FILE, or --no-auth"):
        access_token(public, None, is_open=False)
    with pytest.raises(UsageError, match="exclude each other"):
        access_token(public, path, is_open=True)


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff" * 20, b"0123456789 abc\x00 def"])
def test_a_bad_token_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    """The message names the file, never what is in it."""
    path = tmp_path / "token"
    path.write_bytes(content)

    with pytest.raises(UsageError, match=str(path)) as caught:
        access_token(Address("127.0.0.1", 1), path, is_open=False)

    assert "short" not in str(caught.value)


def test_a_token_file_that_is_missing_is_named(tmp_path: Path) -> None:
    """The path is in the message."""
    with pytest.raises(UsageError, match="cannot be read"):
        access_token(Address("127.0.0.1", 1), tmp_path / "none", is_open=False)
