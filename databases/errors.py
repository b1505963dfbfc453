"""Errors of database servers, by what the caller has to do."""

from event_token.errors import Halt, Rebuild, UsageError


class ServerLost(Rebuild):
    """Raised when a connection is lost or the server rolls back: connect again and go on."""


class ServerSilent(ServerLost):
    """Raised when a server cannot be reached, or breaks off a connection that is being opened."""


class ServerRefused(UsageError):  # noqa: N818 - named by what happened
    """Raised when a server refuses the account, its privileges, its certificate or its settings."""


class LoginRefused(ServerRefused):
    """Raised when a server does not know the account, or refuses its password."""


class TableChanged(Halt):
    """Raised where a table is no longer the one that a cursor is of: to read on would miss rows.

    Whoever can reads the table from its beginning.
    """
