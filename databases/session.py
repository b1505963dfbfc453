"""What a session was asked for, and whether it has it: what stands between may drop a SET."""

from collections.abc import Mapping
from typing import Any, Final

from databases.errors import ServerRefused
from databases.sql import rows

# What PyMySQL asks for where it is given the character set utf8mb4.
UTF8_SESSION: Final = dict.fromkeys(
    ("character_set_client", "character_set_connection", "character_set_results"), "utf8mb4"
)


def set_session(asked: Mapping[str, str]) -> str:
    """Return the statement that sets variables of a session. Pure."""
    return "SET SESSION " + ", ".join(f"{name} = '{value}'" for name, value in asked.items())


def check_session(connection: Any, where: str, asked: Mapping[str, str | None]) -> None:
    """Ask back what a session was asked for, None for NULL; ServerRefused if it has others.

    Otherwise values would be converted, cut or moved to another hour without a word. `where` names
    the server. Errors of PyMySQL pass.
    """
    names = ", ".join(f"@@SESSION.{name}" for name in asked)
    [found] = rows(connection, f"SELECT {names}")
    others = [
        f"{name} = {value}, and has {has}"
        for (name, value), has in zip(asked.items(), found, strict=True)
        if _parts(value) != _parts(has)
    ]
    if others:
        raise ServerRefused(
            f"{where}: the session was asked for {'; '.join(others)}. A proxy between does not "
            f"pass settings on. Fix: connect to the server itself, or let the proxy give each "
            f"client a session of its own"
        )


def _parts(value: object) -> set[str]:
    """The modes of sql_mode, which a server lists in its own order, or the one value."""
    return set(str(value).upper().split(","))
