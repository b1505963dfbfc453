"""Unit files of systemd, and what a producer tells it."""

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardstream.local.fetching import RELEASE, cached, own_loader, quiet, unpack_packages
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.shardstream.command_line import background, streaming, write_settings

UNITS = Path(__file__).parents[2] / "deploy/systemd"
INSTALLED = "/opt/shardstream/bin/shardstream"
# systemd asks for a sign of life within this time.
WATCHDOG_US = 600_000
TELL_S_MAX = 60


@pytest.mark.parametrize("name", sorted(path.name for path in UNITS.iterdir()))
def test_the_units_are_valid(tmp_path: Path, name: str) -> None:
    """Systemd's own verification finds nothing in the unit files."""
    text = (UNITS / name).read_text()
    assert f"ExecStart={INSTALLED} " in text
    unit = tmp_path / name
    unit.write_text(text.replace(INSTALLED, "/bin/true"))
    done = subprocess.run(
        [*systemd_analyze(), "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_a_producer_tells_systemd_that_it_is_ready_alive_and_ending(
    tmp_path: Path,
    kafka: KafkaCluster,
    keyspace: str,
    mysql_a: DatabaseFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """READY=1 once it streams, WATCHDOG=1 while its loop turns, STOPPING=1 at SIGTERM."""
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a})
    with service_manager(tmp_path / "notify") as told:
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", str(WATCHDOG_US))
        arguments = ["produce", f"{keyspace}:-", "--json", "--config", str(config)]
        with background(tmp_path, "producer", *arguments) as producer:
            producer.wait_for("streaming", streaming)
            said = [told.recv(100) for _ in range(4)]
            producer.process.send_signal(signal.SIGTERM)
            while said[-1] != b"STOPPING=1":
                said.append(told.recv(100))
            assert producer.wait_end() == 0

    assert said[:2] == [b"READY=1", b"WATCHDOG=1"]
    assert set(said[2:-1]) == {b"WATCHDOG=1"}


@contextmanager
def service_manager(path: Path) -> Iterator[socket.socket]:
    """A socket that receives what services tell systemd."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(path))
        bound.settimeout(TELL_S_MAX)
        yield bound


def systemd_analyze() -> tuple[str, ...]:
    """The command on PATH, else that of Debian's package, unpacked."""
    if found := shutil.which("systemd-analyze"):
        return (found,)
    root = cached(
        f"systemd-{RELEASE}",
        lambda folder: unpack_packages(folder, RELEASE, ("systemd",), quiet),
    )
    (libraries,) = root.glob("usr/lib/*-linux-gnu*/systemd")
    return (*own_loader(root, libraries), str(root / "usr/bin/systemd-analyze"))
