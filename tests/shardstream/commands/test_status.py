"""`shardstream status`: what readers can have, told from Kafka alone."""

import json
import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shardstream.commands.status import ANSWER_S
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.local_server import free_ports
from tests.database_servers import DatabaseFixture
from tests.shardstream.command_line import background, run, streaming, write_settings
from tests.shardstream.status.answers import get
from tests.stopped_process import stopped
from tests.waiting import WAIT_S, wait_for

# The system chooses the port.
LOOPBACK = "127.0.0.1:0"
# Of the whole command, of which ANSWER_S is one part.
STATUS_S_MAX = 10


def status(config: Path, keyspace: str) -> tuple[int, dict[str, Any]]:
    """The exit status and the view."""
    done = run("status", keyspace, "--json", "--config", str(config))
    assert done.returncode in {0, 1}, done.stderr
    return done.returncode, json.loads(done.stdout)


def wait_for_status(config: Path, keyspace: str, code: int) -> dict[str, Any]:
    """Look again until the command ends with this exit status."""
    found: list[tuple[int, dict[str, Any]]] = []

    def is_reached() -> bool:
        found.append(status(config, keyspace))
        return found[-1][0] == code

    wait_for(f"status {code}", is_reached, said=lambda: found[-1])
    return found[-1][1]


def served(url: str) -> dict[str, Any]:
    """The keyspace as `shardstream serve` tells it."""
    with urllib.request.urlopen(f"{url}status.json", timeout=WAIT_S) as answer:  # noqa: S310
        [found] = json.loads(answer.read())["keyspaces"]
    return dict(found)


def check_counters(port: int) -> None:
    """What a producer that streams answers over HTTP."""
    wait_for("readiness", lambda: get(port, "/readyz") == (200, "ok\n"))
    for name in ("commits_total", "binlog_bytes_total", "binlog_kept_seconds"):
        wait_for(name, partial(is_counted, port, name))


def is_counted(port: int, name: str) -> bool:
    """Whether a metric of a producer is more than 0."""
    metrics = get(port, "/metrics")[1]
    return bool(re.search(rf"^shardstream_producer_{name}.* [1-9]", metrics, re.MULTILINE))


@pytest.mark.full
def test_a_killed_producer_is_named(
    tmp_path: Path,
    kafka: KafkaCluster,
    keyspace: str,
    mysql_a: DatabaseFixture,
    mysql_b: DatabaseFixture,
) -> None:
    """All is well while both producers run; then the dead one's shard is said to hold readers.

    `serve` says the same over HTTP, and ends with status 0 while a page is open.
    """
    shards = {"-80": mysql_a, "80-": mysql_b}
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, shards)
    settings = ("--config", str(config))
    produce = ("produce", keyspace, "--json", "--every", "1", *settings)
    [port] = free_ports(1)
    with (
        background(tmp_path, "a", *produce, "-80", "--http", f"127.0.0.1:{port}") as first,
        background(tmp_path, "b", *produce, "80-") as second,
        background(tmp_path, "s", "serve", "--http", LOOPBACK, "--json", *settings) as server,
    ):
        first.wait_for("streaming", streaming)
        second.wait_for("streaming", streaming)
        well = wait_for_status(config, keyspace, 0)
        check_counters(port)
        run("tail", keyspace, "--until-idle", "2", "--name", "ops", "--config", str(config))
        second.process.send_signal(signal.SIGKILL)
        second.process.wait(WAIT_S)
        url = server.lines[0]["url"]
        wait_for("the page's verdict", lambda: served(url)["is_held_back"])
        told = served(url)
        # One rule: what is red on the page is a failed check.
        verdict, held = status(config, keyspace)
        text = run("status", keyspace, "--config", str(config))
        with urllib.request.urlopen(f"{url}events", timeout=WAIT_S) as events:  # noqa: S310
            first_line = events.readline()
            server.process.terminate()
            ended = server.wait_end()

    assert [shard["state"] for shard in well["shards"]] == ["serving", "serving"]
    assert well["shards"][0]["server"]
    assert (verdict, held["held_by"]) == (1, ["80-"])
    levels = [[shard["level"] for shard in found["shards"]] for found in (well, held, told)]
    assert levels == [["ok", "ok"], ["ok", "red"], ["ok", "red"]]
    # The producers have made the topic in which readers report.
    assert [reader["name"] for reader in held["readers"]] == ["ops"]
    assert text.returncode in {0, 1}, text.stderr
    assert f"{keyspace}: " in text.stdout
    assert "silent" in text.stdout
    assert (told["keyspace"], told["held_by"], told["is_held_back"]) == (keyspace, ["80-"], True)
    assert told["headline"].startswith(f"{keyspace}: 80- has written nothing for ")
    assert (first_line, ended) == (b"retry: 2000\n", 0)


@contextmanager
def frozen(kafka: KafkaCluster) -> Iterator[None]:
    """Brokers that keep their connections and answer nothing, for the duration of a block."""
    with ExitStack() as stack:
        for broker in kafka.brokers:
            if broker.pid is not None:
                stack.enter_context(stopped(broker.pid))
        yield


@pytest.mark.full
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_brokers_that_do_not_answer_are_one_clear_error(
    tmp_path: Path,
    kafka: KafkaCluster,
    keyspace: str,
    mysql_a: DatabaseFixture,
    form: tuple[str, ...],
) -> None:
    """A check learns in time that Kafka is what is down, and nothing about shards."""
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a})
    with frozen(kafka):
        done = run("status", *form, "--config", str(config))

    said = json.loads(done.stderr)["event"] if form else done.stderr
    assert ANSWER_S < STATUS_S_MAX
    assert (done.returncode, done.stdout) == (1, "")
    assert said.startswith(f"error: Kafka does not answer (brokers {kafka.bootstrap_servers})")
    assert len(done.stderr.splitlines()) == 1


def test_a_keyspace_without_topics_is_named(
    tmp_path: Path, kafka: KafkaCluster, keyspace: str, mysql_a: DatabaseFixture
) -> None:
    """Before the first producer there is nothing to look at, and that is said in one line."""
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a})

    done = run("status", "--config", str(config))

    assert done.returncode == 2
    assert keyspace in done.stderr
    assert "Traceback" not in done.stderr
