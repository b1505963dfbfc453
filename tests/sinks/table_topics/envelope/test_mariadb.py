"""MariaDB as the source: its messages have the values that Debezium has of MySQL."""

import json
from typing import Any

import pytest

from sinks.table_topics.envelope.table_encoder import VersionRecords
from tests.database_servers import DatabaseFixture
from tests.sinks.table_topics.envelope.golden_cases import GOLDEN, RUNS
from tests.sinks.table_topics.envelope.topic_messages import messages_of, records_of
from topics.records.table_shape import TableShape

# As in golden/case.sql, and the types that MariaDB has beside those of MySQL.
STATEMENTS = (
    """CREATE TABLE all_types (id INT PRIMARY KEY, ubig BIGINT UNSIGNED, price DECIMAL(10,2),
    day DATE, clock TIME, clock3 TIME(3), clock6 TIME(6),
    at0 DATETIME, at3 DATETIME(3), at4 DATETIME(4), at6 DATETIME(6),
    ts0 TIMESTAMP NULL, ts2 TIMESTAMP(2) NULL, ts3 TIMESTAMP(3) NULL, ts6 TIMESTAMP(6) NULL,
    yr YEAR, doc JSON, own UUID, host INET4, net INET6)""",
    """INSERT INTO all_types VALUES (1, 9223372036854775807, 12345678.91,
    '2024-02-29', '12:34:56', '23:59:59.123', '00:00:00.000001',
    '2024-02-29 12:34:56', '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.7891',
    '2024-02-29 12:34:56.789123', '2024-02-29 12:34:56', '2024-02-29 12:34:56.78',
    '2024-02-29 12:34:56.700', '2024-02-29 12:34:56.789123', 2024, '{"a":  2}',
    '123e4567-e89b-12d3-a456-426655440000', '10.0.0.1', 'fe80::1')""",
    "INSERT INTO all_types (id) VALUES (2)",
    """INSERT INTO all_types (id, ubig, price, day, clock, clock6, at0, at3, at6, ts0, ts6, yr)
    VALUES (3, 18446744073709551615, -0.01, '1000-01-01', '-838:59:59', '838:59:59',
    '1000-01-01 00:00:00', '9999-12-31 23:59:59.999', '1969-12-31 23:59:59.999999',
    '1970-01-01 00:00:01', '2038-01-19 03:14:07.999999', 1901)""",
)
DECLARED = {"all_types.own": "uuid", "all_types.host": "inet4", "all_types.net": "inet6"}
OWN = ("doc", "own", "host", "net")


@pytest.fixture(scope="module")
def decoded(mariadb_a: DatabaseFixture) -> tuple[TableShape, VersionRecords]:
    [found] = records_of(mariadb_a, STATEMENTS, DECLARED)
    return found


@pytest.mark.parametrize("run", ["adaptive", "connect", "isostring"])
def test_values_are_those_of_mysql(decoded: tuple[TableShape, VersionRecords], run: str) -> None:
    """Numbers and times; JSON is text as it was written; UUIDs and addresses are texts."""
    shape, rows = decoded

    found = [
        json.loads(message.value or b"") for message in messages_of(shape, rows, RUNS[run].options)
    ]

    expected = inserted(run)
    for message in found:
        row = message["after"]
        assert (message["op"], message["source"]["connector"]) == ("c", "mariadb")
        own = tuple(row.pop(name) for name in OWN)
        assert row == {name: expected[row["id"]][name] for name in row}
        assert own == (
            ('{"a":  2}', "123e4567-e89b-12d3-a456-426655440000", "10.0.0.1", "fe80::1")
            if row["id"] == 1
            else (None,) * len(OWN)
        )
    assert [message["after"]["id"] for message in found] == [1, 2, 3]


def inserted(run: str) -> dict[int, dict[str, Any]]:
    """The rows of all_types that Debezium saw inserted on MySQL, by id."""
    lines = (GOLDEN / f"{run}.jsonl").read_text("utf-8").splitlines()
    values = [json.loads(line)["value"] for line in lines if '"all_types"' in line]
    images = [value["after"] for value in values if value is not None and value["op"] == "c"]
    return {image["id"]: image for image in images}
