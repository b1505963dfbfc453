"""How to reach a database server. Plain values; no password appears in a repr."""

from collections.abc import Callable
from dataclasses import dataclass, field

from event_token.errors import UsageError


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS to a server: the certificate and the host name are always verified.

    `ca`, `cert` and `key` are paths of PEM files; `cert` and `key` go together.
    """

    ca: str
    cert: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        """Refuse half a client certificate."""
        if (self.cert is None) != (self.key is None):
            message = "TLS settings: `cert` and `key` go together, one of them is missing"
            raise UsageError(message)


@dataclass(frozen=True, slots=True)
class DatabaseServer:
    """A server and the account to use there. Without `tls` the connection is in clear text.

    `read_password` reads the password again, for each connection: it may have been changed.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    tls: TlsSettings | None = None
    read_password: Callable[[], str] | None = field(
        default=None, repr=False, compare=False, kw_only=True
    )

    def current_password(self) -> str:
        """The password as it is now."""
        return self.password if self.read_password is None else self.read_password()

    @property
    def name(self) -> str:
        """`host:port`, as messages and progress records name the server."""
        return f"{self.host}:{self.port}"
