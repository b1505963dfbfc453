"""Privileges as the servers print them."""

import pytest

from databases.grants import Account, global_privileges
from event_token import Flavor
from producers.servers.server_checks import missing_grants


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

    fixes = [fix for _, fix in missing_grants(account, Flavor.MARIADB)]

    assert fixes == [
        "GRANT REPLICATION SLAVE ON *.* TO 'stream'@'%';",
        "GRANT BINLOG MONITOR ON *.* TO 'stream'@'%';",
    ]


def test_all_privileges_are_enough() -> None:
    """An account with all privileges lacks nothing."""
    account = Account("'root'@'%'", frozenset({"ALL PRIVILEGES"}))

    assert missing_grants(account, Flavor.MYSQL) == []
