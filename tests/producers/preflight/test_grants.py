"""Privileges as the servers print them."""

import pytest

from databases.grants import Account, global_privileges
from event_token import Flavor
from producers.preflight.grants import missing_grants
from producers.settings import ServerSettings

SERVER = ServerSettings("db", 3306, "stream", "secret")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO `a`@`%`",
            {"SELECT", "REPLICATION SLAVE", "REPLICATION CLIENT"},
        ),
        (
            "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO `a`@`%` IDENTIFIED BY PASSWORD '*6'",
            {"REPLICATION SLAVE", "REPLICATION CLIENT"},
        ),
        ("GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost`", {"ALL PRIVILEGES"}),
        ("GRANT SELECT ON `shop`.* TO `a`@`%`", set()),
        ("GRANT `reader`@`%` TO `a`@`%`", set()),
    ],
)
def test_global_privileges_are_read(line: str, expected: set[str]) -> None:
    """Only global grants count, under the same name in both families."""
    assert global_privileges([line]) == expected


def test_missing_grants_come_with_their_statement() -> None:
    """Each missing privilege is a separate problem, by the family's name for it."""
    account = Account("'stream'@'%'", frozenset())

    fixes = [p.fix for p in missing_grants(account, SERVER, Flavor.MARIADB)]

    assert fixes == [
        "GRANT REPLICATION SLAVE ON *.* TO 'stream'@'%';",
        "GRANT BINLOG MONITOR ON *.* TO 'stream'@'%';",
    ]


def test_all_privileges_are_enough() -> None:
    """An account with all privileges lacks nothing."""
    account = Account("'root'@'%'", frozenset({"ALL PRIVILEGES"}))

    assert missing_grants(account, SERVER, Flavor.MYSQL) == []
