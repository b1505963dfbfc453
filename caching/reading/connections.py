"""DBAPI connections of any driver: how they are asked, kept, and found to be lost.

What ends a call before its answer was read as a whole, such as a signal handler that raises, also
ends its connection: the next call would get that answer.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from credentials.per_process import PerProcess
from databases import error_codes
from databases.connection import known_error
from databases.errors import ServerLost, ServerRefused
from event_token.errors import ShardstreamError

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
    """A connection with its server's version, and until when its own tables are not asked for.

    `is_asking`: a call has begun, and its answer was not read as a whole.
    """

    raw: Any
    version: str = ""
    hidden_until_s: float = 0.0
    is_asking: bool = False
    in_transaction: bool = False

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of one of our statements, with any cursor of the driver; none for SET.

        Raises ServerLost, ServerRefused, or the driver's own error.
        """
        with driver_errors("asking a server"):
            return [_plain(row) for row in self.query(statement, ())]

    def ask_named(self, statement: str) -> list[dict[str, Any]]:
        """The rows of one of our statements by column name; errors as of `ask`."""
        with driver_errors("asking a server"):
            described, found = self._call(statement, ())
            names = [str(column[0]) for column in described]
            return [dict(zip(names, _plain(row), strict=True)) for row in found]

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
            return self._call(statement, args)[1]

    def begin(self, statement: str) -> None:
        """Begin a transaction, which `end` has to end before the connection is kept."""
        self.in_transaction = True
        self.ask(statement)

    def end(self, statement: str) -> None:
        """End the transaction: COMMIT or ROLLBACK."""
        self.ask(statement)
        self.in_transaction = False

    def outlives(self, error: BaseException) -> bool:
        """Whether the connection can be asked again: the error is an answer, or one of ours."""
        is_ours = isinstance(error, ShardstreamError) and not isinstance(error, ServerLost)
        return not self.is_asking and (is_ours or _is_answer(error))

    def _call(self, statement: str, args: Any) -> tuple[Sequence[Any], list[Any]]:
        """The description of the columns, and the rows, as the driver returns them."""
        found: list[Any] = []
        self.is_asking = True
        cursor = self.raw.cursor()
        try:
            # Without values a driver must not format the text: % is no placeholder then.
            cursor.execute(statement, args) if args else cursor.execute(statement)
            described = cursor.description or ()
            if described:
                found = list(cursor.fetchall())
        except Exception as error:
            if _is_answer(error):
                self._finish(cursor)
            raise
        self._finish(cursor)
        return described, found

    def _finish(self, cursor: Any) -> None:
        """Read what is left of the answer, such as further results of a procedure."""
        try:
            cursor.close()
        except Exception as error:
            if not _is_answer(error):
                raise
        self.is_asking = False

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
        self._idle: PerProcess[deque[OpenConnection]] = PerProcess(deque)

    @contextmanager
    def connection(self) -> Iterator[OpenConnection]:
        """An idle connection of this process or a new one; kept if it can be asked again."""
        idle = self._idle.here()
        try:
            opened = idle.pop()
        except IndexError:
            opened = self._open()
        try:
            yield opened
        except BaseException as error:
            if opened.in_transaction or not opened.outlives(error):
                _discard(opened)
                raise
            _keep(opened, idle)
            raise
        _keep(opened, idle)

    def close(self) -> None:
        """Close the idle connections."""
        idle = self._idle.here()
        while idle:
            with suppress(IndexError):  # another thread has taken it
                _close(idle.pop())

    def _open(self) -> OpenConnection:
        with driver_errors("connecting to a server"):
            opened = OpenConnection(self._connect())
        try:
            [(version,)] = opened.ask("SELECT @@version")
        except BaseException:
            _discard(opened)
            raise
        opened.version = str(version)
        return opened


def _keep(opened: OpenConnection, idle: deque[OpenConnection]) -> None:
    if len(idle) < IDLE_MAX:
        idle.append(opened)
    else:
        _close(opened)


def _close(opened: OpenConnection) -> None:
    """Close a connection, or give it back to its pool."""
    with suppress(Exception):  # it may be broken in ways of any driver
        opened.raw.close()


def _discard(opened: OpenConnection) -> None:
    """Close a connection that must not be asked again; SQLAlchemy's pools are told so."""
    with suppress(Exception):
        getattr(opened.raw, "invalidate", opened.raw.close)()


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


def _is_answer(error: BaseException) -> bool:
    """Whether a server has refused a statement, and is ready for the next one."""
    return _is_driver_error(error) and error_code(error) > 0 and not is_lost(error)


def is_lost(error: BaseException) -> bool:
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


def _is_driver_error(error: BaseException) -> bool:
    # PEP 249: every driver derives its errors from a class of this name.
    return "Error" in _names(error)


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _plain(row: Any) -> tuple[Any, ...]:
    values: Sequence[Any] = tuple(row.values()) if isinstance(row, Mapping) else row
    return tuple(bytes(v).decode() if isinstance(v, (bytes, bytearray)) else v for v in values)
