"""How to reach a database server. Plain values; no password appears in a repr."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from credentials.errors import SecretUnavailable
from credentials.secret import Secret
from databases.errors import LoginRefused
from event_token.errors import UsageError

# How long a server may be away, or refuse a login that has worked, unless settings say otherwise: a
# restart or failover takes seconds to minutes; beyond that an operator must look.
OUTAGE_S: Final = 600.0


class Platform(StrEnum):
    """Who runs a server. PLAIN: its users, who may set variables and option files themselves."""

    PLAIN = "plain"
    RDS = "rds"
    AURORA = "aurora"
    CLOUD_SQL = "cloudsql"
    AZURE = "azure"


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

    A `Secret` is read for each connection: it may have been changed.
    """

    host: str
    port: int
    user: str
    password: str | Secret = field(repr=False)
    tls: TlsSettings | None = None

    def current_password(self) -> str:
        """The password as it is now. LoginRefused if it cannot be had."""
        if isinstance(self.password, str):
            return self.password
        try:
            return self.password.read()
        except SecretUnavailable as error:
            raise LoginRefused(str(error)) from error

    def renewed_password(self, refused: str) -> str:
        """Return another password than the one refused, `refused` itself if there is none."""
        if isinstance(self.password, str):
            return refused
        try:
            return self.password.renewed(refused)
        except SecretUnavailable as error:
            raise LoginRefused(str(error)) from error

    @property
    def name(self) -> str:
        """`host:port`, as messages and progress records name the server."""
        return f"{self.host}:{self.port}"
