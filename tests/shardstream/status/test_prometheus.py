"""Alerts and dashboard against a Prometheus that scrapes the running system."""

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pymysql
import pytest
from prometheus_client.core import Metric

from producers.settings import ProducerState, ProducerStatus
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.local_server import free_ports
from shardstream.status.address import Address
from shardstream.status.metrics.fleet import fleet_families
from shardstream.status.metrics.processes import (
    applier_families,
    invalidator_families,
    producer_families,
    sink_families,
)
from shardstream.status.probe import Probe
from shardstream.status.server import serving
from tests.database_servers import DatabaseFixture
from tests.prometheus_server import Prometheus, prometheus
from tests.promql import alert_rules, panel_expressions
from tests.shardstream.command_line import background, streaming, write_settings
from tests.shardstream.status.statuses import (
    APPLIED,
    STATUS,
    WRITTEN,
    counted,
    fleet,
    subscribed,
)
from tests.waiting import COSTLY_POLL_S, wait_for

pytestmark = pytest.mark.full

# Dashboards on faults are empty while there are none; alerts are while all is well.
SELECTOR = re.compile(r"\b(?:shardstream_\w+|up|process_\w+)(?:\{[^}]*\})?")


def other_processes() -> Iterator[Metric]:
    """A fleet with a copy, a reshard and a reader, and processes that need more servers."""
    status = ProducerStatus("-80", "", 0, 0, 6, 0.0, ProducerState.IDLE)
    families: Iterable[Iterable[Metric]] = (
        fleet_families(fleet()),
        producer_families("commerce", "-80", counted(), status),
        applier_families("commerce", "split", "80-c0", APPLIED),
        invalidator_families("commerce", "main", STATUS),
        sink_families("commerce", "changelog", WRITTEN),
        subscribed().collect(),
    )
    for each in families:
        yield from each


def wait_for_samples(server: Prometheus, expressions: Iterable[str]) -> None:
    """Wait until each has a result."""
    empty = list(dict.fromkeys(expressions))

    def all_have() -> bool:
        empty[:] = [expression for expression in empty if not server.query(expression)]
        return not empty

    wait_for("samples of each expression", all_have, said=lambda: empty, poll_s=COSTLY_POLL_S)


def cut_off(database: DatabaseFixture) -> None:
    """End the connection on which a producer reads the binlog."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"
        )
        for (number,) in cursor.fetchall():
            with suppress(pymysql.err.MySQLError):  # that of an earlier producer goes by itself
                cursor.execute(f"KILL {number}")


def test_alerts_and_panels_find_what_they_ask_for(
    tmp_path: Path, kafka: KafkaCluster, keyspace: str, mysql_a: DatabaseFixture
) -> None:
    """No panel is empty, and no alert waits for a metric that does not exist.

    `increase()` sees the first fault of a producer.
    """
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a})
    settings = ("--json", "--config", str(config))
    ports = free_ports(3)
    produce_http, serve_http = (f"127.0.0.1:{port}" for port in ports[:2])
    produce = ("produce", keyspace, "-", "--http", produce_http, *settings)
    probe = Probe(is_ready=True)
    with ExitStack() as started:
        producer = started.enter_context(background(tmp_path, "p", *produce))
        started.enter_context(background(tmp_path, "s", "serve", "--http", serve_http, *settings))
        started.enter_context(serving(Address("127.0.0.1", ports[2]), None, probe, other_processes))
        server = started.enter_context(prometheus(tmp_path, ports))
        producer.wait_for("streaming", streaming)
        of_ours = f'{{keyspace="{keyspace}",shard="-"}}'
        conditions = [rule["expr"] for rule in alert_rules()]
        wait_for_samples(
            server,
            [
                *panel_expressions(),
                *(part for each in conditions for part in SELECTOR.findall(each)),
                f'shardstream_shard_state{{keyspace="{keyspace}",state="serving"}} == 1',
                f"rate(shardstream_producer_commits_total{of_ours}[1m]) > 0",
            ],
        )
        cut_off(mysql_a)
        faults = f"increase(shardstream_producer_reconnects_total{of_ours}[1h]) > 0"
        wait_for_samples(server, [faults])
        # Most have no result while all is well; each must be one that Prometheus takes.
        for each in conditions:
            server.query(each)
        # The fleet beside ours has a reshard that has stopped writes.
        fires = [each for each in conditions if "writes_stopped" in each]
        assert fires
        wait_for_samples(server, fires)
