"""A Docker engine without an installation: Debian's packages in a folder of the cache.

Two folders come from Debian's packages by mmdebstrap: the engine, and the stand-in for the image
python:3.12-slim.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from event_token.errors import Retry, UsageError
from shardstream.local.database_binaries import mysql_tree
from shardstream.local.fetching import Report, cache_folder, cached, debian_obstacle, mirror
from shardstream.local.kafka_cluster import kafka_jars

RELEASE = "bookworm"
ENGINE_PACKAGES = (
    *("ca-certificates", "coreutils", "dash", "docker.io", "docker-compose", "iproute2"),
    *("iptables", "mount", "procps"),
)
# What packages leave to their installation.
ENGINE_FOLDERS = ("proc", "root", "run", "sys", "tmp")
ENGINE_LINKS = {
    "usr/sbin/iptables": "xtables-nft-multi",
    "usr/sbin/ip6tables": "xtables-nft-multi",
    # Where clients look for the engine's socket.
    "var/run": "/run",
}
PYTHON_PACKAGES = ("ca-certificates", "python3-venv", "python3-dev")
# 300 packages over a slow line.
FETCH_S_MAX = 1800
# Tells folders that other package lists have made.
ENGINE_ENTRY = f"ecosystem-engine-unpacked-{RELEASE}"
PYTHON_ENTRY = f"ecosystem-python-{RELEASE}"
PYTHON_TAR = "python.tar"
# Of `make test`'s cache, for the stand-ins.
SERVERS = (mysql_tree, kafka_jars)


def prepare(report: Report) -> None:
    """Fetch both folders and the servers. UsageError if this machine cannot make an engine."""
    if os.geteuid() != 0:
        raise UsageError("no Docker engine answers here, and only root can make one")
    if obstacle := debian_obstacle():
        raise UsageError(
            f"no Docker engine answers here, and one is made from Debian's packages: {obstacle}"
        )
    if shutil.which("mmdebstrap") is None:
        report("installing Debian's package mmdebstrap on this machine")
        _run("apt-get", "update", "-qq")
        _run("apt-get", "install", "-qq", "--yes", "--no-install-recommends", "mmdebstrap")
    # Each waits for a mirror most of the time.
    with ThreadPoolExecutor() as pool:
        work = [pool.submit(each, report) for each in (engine_root, python_tar, *SERVERS)]
    for each in work:
        each.result()


def engine_root(report: Report) -> Path:
    """Return the root file system of the engine."""

    def make(folder: Path) -> None:
        report("fetching a Docker engine from Debian's packages")
        root = folder / "root"
        # Unpacked, not installed: no script of a package runs, which takes a third of the time.
        _bootstrap("extract", ENGINE_PACKAGES, root)
        for name in ENGINE_FOLDERS:
            (root / name).mkdir(exist_ok=True)
        for name, target in ENGINE_LINKS.items():
            (root / name).symlink_to(target)

    return cached(ENGINE_ENTRY, make, report=report) / "root"


def python_tar(report: Report) -> Path:
    """Return the archive of a small Debian with Python."""

    def make(folder: Path) -> None:
        report("fetching a Debian with Python from Debian's packages")
        _bootstrap("minbase", PYTHON_PACKAGES, folder / PYTHON_TAR)

    return cached(PYTHON_ENTRY, make, report=report) / PYTHON_TAR


def data_folder() -> Path:
    """Return the folder with the engine's images, which the next run uses again."""
    return cache_folder() / "ecosystem-docker"


def _bootstrap(variant: str, packages: Sequence[str], target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    _run(
        *("mmdebstrap", "--quiet", "--mode=root", f"--variant={variant}"),
        *(f"--include={','.join(packages)}", RELEASE, str(target), str(mirror())),
    )


def _run(*command: str) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        subprocess.run(command, check=True, timeout=FETCH_S_MAX, env=env)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise Retry(f"{command[0]}: {error}") from error
