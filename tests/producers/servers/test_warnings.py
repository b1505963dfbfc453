"""What preflight says of a server though it refuses nothing for it."""

import pytest

from databases.platforms import kept_seconds
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import StartServer
from tests.producers.session.producing import settings_of, warnings_of


def test_images_expiry_and_clocks_are_warned_of(
    start_server: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """C3: partial row images, binlogs that expire in a minute and a wrong clock are named."""
    options = ("--binlog-row-image=MINIMAL", "--binlog-expire-logs-seconds=60")
    hour_back = "--init-connect=SET timestamp = UNIX_TIMESTAMP() - 3600"
    database = start_server((*options, hour_back))

    clock, image, expiry = warnings_of(settings_of(database, kafka, keyspace))

    assert "s behind this host's" in clock
    assert "binlog_row_image is MINIMAL" in image
    assert "binlogs expire after 60 s" in expiry


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"binlog_expire_logs_seconds": "2592000"}, 2_592_000),
        ({"binlog_expire_logs_seconds": "0", "expire_logs_days": "0.500000"}, 43_200),
        ({"binlog_expire_logs_seconds": "60", "binlog_expire_logs_auto_purge": "OFF"}, None),
        ({"expire_logs_days": "0.000000"}, None),
        ({}, None),
    ],
)
def test_expiry_is_read_from_any_of_its_variables(
    variables: dict[str, str], expected: int | None
) -> None:
    """Families and versions name it differently; 0 keeps binlogs for ever."""
    assert kept_seconds(variables) == expected
