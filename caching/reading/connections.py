"""DBAPI connections of any driver: how they are asked, kept, and found to be lost."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from databases import error_codes
from databases.connection import known_error
from databases.errors import ServerLost, ServerRefused

# A function that returns a DBAPI (PEP 249) connection: a driver's `connect`, or a pool's checkout.
Connect = Callable[[], Any]

# Connections kept open per server while they are idle; threads beyond them open their own.
IDLE_MAX: Final = 4
# How long a connection does not ask again for tables that it was not shown.
HIDDEN_S: Final = 10.0

# No such database, table or column, or no privilege for it.
_HIDDEN: Final = frozenset({1044, 1049, 1054, 1142, 1143, 1146})


@dataclass(slots=True)
class OpenConnection:
    """A connection with its server's version, and until when its own tables are not asked for."""

    raw: Any
    version: str = ""
    hidden_until_s: float = 0.0

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of one of our statements, with any cursor of the driver; none for SET.

        Raises ServerLost, ServerRefused, or the driver's own error.
        """
        with driver_errors("asking a server"):
            return [_plain(row) for row in self.query(statement, ())]

    def ask_named(self, statement: str) -> list[dict[str, Any]]:
        """The rows of one of our statements by column name; errors as of `ask`."""
        with driver_errors("asking a server"):
            cursor = self.raw.cursor()
            try:
                cursor.execute(statement)
                names = [str(column[0]) for column in cursor.description]
                return [dict(zip(names, _plain(row), strict=True)) for row in cursor.fetchall()]
            finally:
                with suppress(Exception):  # the connection is gone, with its cursor
                    cursor.close()

    def ask_if_shown(self, statement: str) -> list[tuple[Any, ...]] | None:
        """The rows of one of our statements; None if a table is missing or forbidden."""
        try:
            return [_plain(row) for row in self.query(statement, ())]
        except ServerLost:
            raise
        except Exception as error:
            if error_code(error) not in _HIDDEN:
                raise
            return None

    def query(self, statement: str, args: Any) -> list[Any]:
        """The rows as the driver returns them. ServerLost, or the driver's own error."""
        with driver_errors("reading from a server", refused=False):
            cursor = self.raw.cursor()
            try:
                # Without values a driver must not format the text: % is no placeholder then.
                cursor.execute(statement, args) if args else cursor.execute(statement)
                return list(cursor.fetchall()) if cursor.description else []
            finally:
                with suppress(Exception):  # the connection is gone, with its cursor
                    cursor.close()

    @property
    def hides_tables(self) -> bool:
        """Whether `_shardstream` was missing or forbidden a short time ago."""
        return time.monotonic() < self.hidden_until_s

    def hide_tables(self) -> None:
        """Do not ask for its tables for a while: without them reads have no time, which is safe."""
        self.hidden_until_s = time.monotonic() + HIDDEN_S


class Server:
    """One server of a shard: opens connections and keeps a few; threads may share it.

    `name` and `was_primary` are its own name and its role as they were last asked for: they order
    servers and decide nothing.
    """

    def __init__(self, connect: Connect) -> None:
        """Connect with the first read."""
        self.name = ""
        self.was_primary = False
        self._connect = connect
        self._idle: deque[OpenConnection] = deque()

    @contextmanager
    def connection(self) -> Iterator[OpenConnection]:
        """An idle connection or a new one; kept unless it is lost or interrupted."""
        opened = self._take()
        is_kept = False
        try:
            yield opened
            is_kept = True
        except ServerLost:
            raise
        except Exception:
            is_kept = True
            raise
        finally:
            if is_kept and len(self._idle) < IDLE_MAX:
                self._idle.append(opened)
            else:
                close(opened)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            with suppress(IndexError):  # another thread has taken it
                close(self._idle.pop())

    def _take(self) -> OpenConnection:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        with driver_errors("connecting to a server"):
            opened = OpenConnection(self._connect())
        [(version,)] = opened.ask("SELECT @@version")
        opened.version = str(version)
        return opened


def close(opened: OpenConnection) -> None:
    """Close a connection, or give it back to its pool."""
    with suppress(Exception):  # it may be broken in ways of any driver
        opened.raw.close()


@contextmanager
def driver_errors(doing: str, *, refused: bool = True) -> Iterator[None]:
    """Translate a driver's errors: ServerLost, and ServerRefused if `refused`; the rest passes."""
    try:
        yield
    except Exception as error:
        if is_lost(error):
            raise ServerLost(f"{doing}: {error}") from error
        text = str(error.args[1]) if len(error.args) > 1 else str(error)
        known = known_error(error_code(error), text, doing)
        if refused and _is_driver_error(error) and isinstance(known, ServerRefused):
            raise known from error
        raise


def error_code(error: BaseException) -> int:
    """The server's error number, as any driver gives it; 0 where there is none."""
    for code in (getattr(error, "errno", None), *error.args[:1]):
        if isinstance(code, int) and code > 0:
            return code
    return 0


def is_lost(error: Exception) -> bool:
    """Whether an error of any driver says that the connection is gone."""
    if isinstance(error, OSError):
        return True
    code = error_code(error)
    if not _is_driver_error(error):
        return False
    names = _names(error)
    if code == 0:  # of any statement, unless the driver says that the connection is unusable
        return bool(names & {"InterfaceError", "OperationalError"})
    return error_codes.is_lost(code)


def _is_driver_error(error: Exception) -> bool:
    # PEP 249: every driver derives its errors from a class of this name.
    return "Error" in _names(error)


def _names(error: Exception) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _plain(row: Any) -> tuple[Any, ...]:
    values: Sequence[Any] = tuple(row.values()) if isinstance(row, Mapping) else row
    return tuple(bytes(v).decode() if isinstance(v, (bytes, bytearray)) else v for v in values)
