"""What the error codes of MySQL and MariaDB say: one judgement for all who talk to such a server.

None of them says whether a COMMIT that it answers is there: with most of them it may be. From 1900
on the families use some numbers for different errors; those of MySQL here mean mistakes in
statements on MariaDB that no statement of ours makes.
"""

from typing import Final

# Access denied in its forms, missing privilege, locked account, expired password, and a plugin or
# TLS that the server demands.
ACCESS_REFUSED: Final = frozenset(
    {1044, 1045, 1130, 1142, 1143, 1227, 1251, 1698, 1820, 1862, 2026, 2059, 2061, 3118, 3159, 4151}
)
# Of these: the account or its password.
LOGIN_REFUSED: Final = frozenset({1045, 1698})

# The connection is at its end, or the server admits none: too many of them or of the account's
# (1040, 1203, 1226), no thread for it (1135), a shutdown (1053, 1077, 1079, 1080), the offline mode
# (3032), a node that is not part of its cluster (1047), a broken connection (1043, 1152, 1158
# to 1161, 1184), one that was killed (1927, 3169) or silent for too long (4031), and a server that
# ends itself because it cannot write its binlog (1598).
_LOST: Final = frozenset(
    {
        *(1040, 1043, 1047, 1053, 1077, 1079, 1080, 1135, 1152, 1158, 1159, 1160, 1161, 1184),
        *(1203, 1226, 1598, 1927, 3032, 3169, 4031),
    }
)
# Made by the client: the server was not reached, or the connection broke.
CLIENT_ERRORS: Final = range(2000, 2100)

# The statement was undone and may succeed when it is run again: a row that was changed meanwhile
# (1020), locks (1205, 1213, 1689), a definition that was changed meanwhile (1412, 1615),
# interrupted or over a time limit (1317, 1969, 3024), memory (1037, 1041, 3015), transactions in
# progress (1637), and a storage engine or a replication group that refuses a commit (1180, 3100,
# 3101, 3796 to 3798).
PASSING: Final = frozenset(
    {
        *(1020, 1037, 1041, 1180, 1205, 1213, 1317, 1412, 1615, 1637, 1689, 1969),
        *(3015, 3024, 3100, 3101, 3796, 3797, 3798),
    }
)
# The server takes no writes, as after a failover.
_READ_ONLY: Final = frozenset({1290, 1792, 1836, 1874})


def is_lost(code: int) -> bool:
    """Whether the connection is of no use any more; 0 is an error of the client without a code."""
    return code == 0 or code in _LOST or code in CLIENT_ERRORS


def is_outage(code: int) -> bool:
    """Whether the server is at fault, for a while, and not the statement or the account."""
    return is_lost(code) or code in PASSING or code in _READ_ONLY
