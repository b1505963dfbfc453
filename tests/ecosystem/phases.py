"""The two phases in the engine's namespaces: build the images, run the tests.

Builds need the registries, so the engine runs in the machine's network then, without a bridge and
without firewall rules, which would change the machine. The tests run in a network of their own.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from event_token.errors import Halt
from shardstream.local.fetching import quiet
from tests.ecosystem.cgroups import NAME as CGROUP
from tests.ecosystem.docker_commands import FILE_VARIABLE, PROGRAM_VARIABLE, Docker
from tests.ecosystem.engine import data_folder, engine_root
from tests.ecosystem.images import IMAGES, build_images
from tests.repository import ROOT

BUILD, TEST = "build", "test"
# Without a network of its own the engine must touch neither bridges nor firewall rules.
NO_NETWORK = ("--bridge=none", "--iptables=false", "--ip6tables=false")
# Starts in 2 s; its log tells why it does not.
READY_S_MAX = 120.0
READY_POLL_S = 0.2
# Compose stops a container after 10 s.
STOP_S_MAX = 60.0
# Seen from the engine's root.
REPOSITORY = Path("/repository")
SOCKET = "run/docker.sock"

# A plain chroot instead of pivot_root would run health checks and `docker exec` in the host's root.
_PIVOT = """
cd "$1"; shift
mkdir -p .old
pivot_root . .old
cd /
exec chroot . sh -c 'umount -l /.old; ip link set lo up; exec "$@"' sh "$@"
"""


def main(phase: str, arguments: list[str]) -> int:
    """Run one phase; called in namespaces of its own, as their first process."""
    began_s = time.monotonic()

    def report(message: str) -> None:
        print(f"{time.monotonic() - began_s:6.1f} s  {message}", flush=True)

    root = engine_root(quiet)
    _mount(root)
    with _engine(root, NO_NETWORK if phase == BUILD else ()) as docker:
        if phase == BUILD:
            build_images(docker, report)
            return os.EX_OK
        return run_tests(docker, arguments)


def run_tests(docker: Docker, arguments: list[str]) -> int:
    """Run pytest on this folder; return its exit status."""
    env = {
        **os.environ,
        **docker.images,
        PROGRAM_VARIABLE: docker.program,
        FILE_VARIABLE: str(docker.compose_file),
        # Its helper container would have to come from a registry; everything ends here anyway.
        "TESTCONTAINERS_RYUK_DISABLED": "true",
        # Debian's Compose gives up after a minute, in which a busy machine starts no container.
        "COMPOSE_HTTP_TIMEOUT": "600",
    }
    if docker.host:
        env["DOCKER_HOST"] = docker.host
    command = [
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--durations=0"),
        *("tests/ecosystem", *arguments),
    ]
    return subprocess.run(command, check=False, env=env, cwd=ROOT).returncode


def _mount(root: Path) -> None:
    """Mount what the engine needs, seen by this process and its children alone."""
    data = data_folder()
    data.mkdir(parents=True, exist_ok=True)
    for folder in ("repository", "data", "host"):
        (root / folder).mkdir(exist_ok=True)
    for name in ("resolv.conf", "hosts"):
        (root / "etc" / name).touch()
    commands = [
        ("--bind", str(root), str(root)),
        ("-t", "proc", "proc", str(root / "proc")),
        ("--rbind", "/sys", str(root / "sys")),
        ("--rbind", "/dev", str(root / "dev")),
        ("-t", "tmpfs", "tmpfs", str(root / "run")),
        ("--bind", str(ROOT), str(root / "repository")),
        ("--bind", str(data), str(root / "data")),
        ("--bind", "/etc/resolv.conf", str(root / "etc/resolv.conf")),
        ("--bind", "/etc/hosts", str(root / "etc/hosts")),
    ]
    for arguments in commands:
        subprocess.run(["mount", *arguments], check=True)


@contextmanager
def _engine(root: Path, network: tuple[str, ...]) -> Iterator[Docker]:
    """Run the engine; nothing is left of an earlier run but its images."""
    log_path = data_folder().with_suffix(".log")
    command = [
        *("unshare", "--mount", "--propagation=private", "sh", "-ec", _PIVOT, "sh", str(root)),
        *("dockerd", "--data-root=/data", f"--host=unix:///{SOCKET}", "--storage-driver=overlay2"),
        *("--exec-root=/run/docker", "--pidfile=/run/docker.pid", f"--cgroup-parent=/{CGROUP}"),
        "--exec-opt=native.cgroupdriver=cgroupfs",
        # Root here may be a root without CAP_SYS_RESOURCE, which cannot raise the limit.
        "--default-ulimit=nofile=20000:20000",
        *network,
    ]
    docker = Docker(_client(root), REPOSITORY, f"unix://{root / SOCKET}", IMAGES)
    with log_path.open("w") as log:
        engine = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_ready(docker, engine, log_path)
        _remove_containers(docker)
        yield docker
    finally:
        engine.terminate()
        try:
            engine.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()


def _wait_ready(docker: Docker, engine: subprocess.Popen[bytes], log_path: Path) -> None:
    ends_s = time.monotonic() + READY_S_MAX
    while not docker.answers():
        if engine.poll() is not None or time.monotonic() > ends_s:
            raise Halt(f"the Docker engine does not answer:\n{log_path.read_text()[-5000:]}")
        time.sleep(READY_POLL_S)


def _remove_containers(docker: Docker) -> None:
    """Remove what a killed run has left; images stay."""
    if left := docker.run("ps", "--all", "--quiet").split():
        docker.run("rm", "--force", "--volumes", *left)
    docker.run("volume", "prune", "--force")
    docker.run("network", "prune", "--force")


def _client(root: Path) -> str:
    """Return a program that takes the arguments of `docker`; Debian's Compose is one of its own."""
    program = root / "run" / "docker-client"
    # The engine's root has the socket where clients expect it.
    program.write_text(
        f"""#!/bin/sh
run() {{ exec env -u DOCKER_HOST chroot {root} "$@"; }}
[ "$1" = compose ] || run docker "$@"
shift
run docker-compose "$@"
"""
    )
    program.chmod(0o755)
    return str(program)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
