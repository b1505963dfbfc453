"""Whether an account is locked, as its server says."""

import re
from typing import Any, Final

from databases.sql import rows

_STRINGS: Final = re.compile(r"'(?:[^'\\]|\\.|'')*'")
_LOCKED: Final = re.compile(r"\bACCOUNT LOCK\b")


def is_account_locked(connection: Any, user: str, host: str) -> bool:
    """Whether the account is locked; an error of PyMySQL if there is none."""
    [(statement,)] = rows(connection, "SHOW CREATE USER %s@%s", (user, host))
    return _LOCKED.search(_STRINGS.sub("''", str(statement))) is not None
