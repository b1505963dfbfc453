"""The images: ours from docker/Dockerfile, and stand-ins for those that come from a registry.

A stand-in keeps the contract of the image that it replaces, as far as docker/compose.yaml uses it:
the same variables, folders, ports and programs.
"""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from shardstream.local.database_binaries import mysql_tree
from shardstream.local.fetching import Report
from shardstream.local.kafka_cluster import kafka_jars
from tests.ecosystem.docker_commands import Docker
from tests.ecosystem.engine import data_folder, python_tar
from tests.ecosystem.machine_network import proxies, write_configuration
from tests.repository import ROOT

STANDINS = Path(__file__).with_name("standins")
# What the build finds in its context, seen by the engine under /data.
CONTEXT = "context"
IMAGES = {
    "SHARDSTREAM_IMAGE": "shardstream:ecosystem",
    "SHARDSTREAM_SPARK_IMAGE": "shardstream-spark:ecosystem",
    "MYSQL_IMAGE": "standin-mysql:ecosystem",
    "KAFKA_IMAGE": "standin-kafka:ecosystem",
    "REDIS_IMAGE": "standin-redis:ecosystem",
    "POSTGRES_IMAGE": "standin-postgres:ecosystem",
    "PROMETHEUS_IMAGE": "standin-prometheus:ecosystem",
}
_ARCHIVE, _PYTHON, _JAVA = "archive:ecosystem", "standin-python:ecosystem", "java:ecosystem"
# Targets of docker/Dockerfile.
_OURS = {"spark": IMAGES["SHARDSTREAM_SPARK_IMAGE"], "shardstream": IMAGES["SHARDSTREAM_IMAGE"]}
_SERVERS = ("mysql", "kafka", "redis", "postgres", "prometheus")
# Two generations of all layers.
LAYERS_KEPT = "12GB"


def services_with_images() -> list[str]:
    """Return the services of docker/compose.yaml whose images are built here: all but Grafana."""
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    return [name for name, each in services.items() if each["image"][2:].split(":")[0] in IMAGES]


def build_images(docker: Docker, report: Report) -> None:
    """Build all; layers whose inputs are as they were come from the engine's data.

    The compiler waits for no package and packages wait for no compiler: the engine is asked for
    everything at once, and builds each stage that two images share once.
    """
    context = data_folder() / CONTEXT
    if context.exists():
        shutil.rmtree(context)
    context.mkdir(parents=True)
    try:
        _build_python(docker, context, report)
        with ThreadPoolExecutor() as pool:
            work = [pool.submit(_build_ours, docker, target, report) for target in _OURS]
            work.append(pool.submit(_build_servers, docker, context, report))
        for each in work:
            each.result()
    finally:
        shutil.rmtree(context)
    docker.run("image", "prune", "--force")
    docker.run("builder", "prune", "--force", "--keep-storage", LAYERS_KEPT)


def _build_ours(docker: Docker, target: str, report: Report, tag: str = "") -> None:
    where = str(docker.repository)
    file, base = f"{where}/docker/Dockerfile", f"PYTHON_IMAGE={_PYTHON}"
    _build(docker, tag or _OURS[target], target, context=where, file=file, base=base)
    report(f"built {tag or _OURS[target]}")


def _build_servers(docker: Docker, context: Path, report: Report) -> None:
    _build_ours(docker, "java", report, _JAVA)
    _gather(context, report)
    where = f"/data/{CONTEXT}"
    file, base = f"{where}/Dockerfile", f"JAVA_IMAGE={_JAVA}"
    for name in _SERVERS:
        tag = IMAGES[f"{name.upper()}_IMAGE"]
        _build(docker, tag, name, context=where, file=file, base=base)
        report(f"built {tag}")


def _build_python(docker: Docker, context: Path, report: Report) -> None:
    """Make the stand-in for python:3.12-slim, which reaches the registries as this machine does."""
    if not docker.run("images", "--quiet", _ARCHIVE):
        report(f"importing {_ARCHIVE}")
        archive = context / "python.tar"
        archive.hardlink_to(python_tar(report))
        docker.run("import", f"/data/{CONTEXT}/{archive.name}", _ARCHIVE)
        archive.unlink()
    folder = context / "python"
    folder.mkdir()
    write_configuration(folder)
    shutil.copy(STANDINS / "python.Dockerfile", folder / "Dockerfile")
    where = f"/data/{CONTEXT}/python"
    file, base = f"{where}/Dockerfile", f"ARCHIVE={_ARCHIVE}"
    _build(docker, _PYTHON, "python", context=where, file=file, base=base)


def _gather(context: Path, report: Report) -> None:
    """Put into the context what `make test` has in its cache too."""
    shutil.copytree(STANDINS, context, dirs_exist_ok=True)
    # Hard links: the cache lies on the same file system.
    for source, name in ((mysql_tree(report), "mysql"), (kafka_jars(report), "kafka")):
        subprocess.run(["cp", "-al", str(source), str(context / name)], check=True)


def _build(docker: Docker, tag: str, target: str, *, context: str, file: str, base: str) -> None:
    """Build a target of a Dockerfile; `base`: the build argument that names what it is built on."""
    # Docker knows the proxy variables, whose values stay out of the image.
    named = [base, *(f"{name}={value}" for name, value in proxies().items())]
    arguments = [word for each in named for word in ("--build-arg", each)]
    subprocess.run(
        [
            *(docker.program, "build", "--quiet", "--network", "host", "--file", file),
            *("--target", target, "--tag", tag, *arguments, context),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        # Stages side by side, and only those that a target needs.
        env={**os.environ, "DOCKER_BUILDKIT": "1"},
    )
