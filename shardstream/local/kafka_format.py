"""Formatted folders of brokers. Kafka's own tool starts a JVM: it runs once, for a template."""

import base64
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from shardstream.local.fetching.binaries import run_step
from shardstream.local.fetching.cache import Report, cached
from shardstream.local.fetching.maven import java_command

FORMAT_S_MAX = 120.0
META = "meta.properties"
# The first records of a new cluster's metadata: the versions of its features.
FIRST_RECORDS = "bootstrap.checkpoint"


def random_id() -> str:
    """Return 16 random bytes as Kafka prints a uuid."""
    drawn = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
    # A leading dash would be taken for an option.
    return drawn.replace("-", "A")


def formatted_template(
    jars: Path, version: str, settings: Mapping[str, str], report: Report
) -> Path:
    """Return a folder as Kafka of this version formats it; `settings` are any broker's.

    Raises Halt if formatting fails.
    """

    def make(folder: Path) -> None:
        report(f"formatting a folder for Kafka {version}")
        path = folder / "server.properties"
        chosen = {**settings, "log.dirs": str(folder / "data")}
        path.write_text("".join(f"{key}={value}\n" for key, value in chosen.items()))
        tool = ["kafka.tools.StorageTool", "format", "-t", random_id(), "-c", str(path)]
        run_step(
            [java_command(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", *tool],
            what=f"formatting a folder for Kafka {version}",
            timeout_s=FORMAT_S_MAX,
        )

    return cached(f"kafka-formatted-{version}", make, report=report) / "data"


def format_folder(template: Path, folder: Path, *, cluster_id: str, node_id: int) -> None:
    """Make `folder` a formatted one of this node, unless it is one already."""
    meta = folder / META
    if meta.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(template / FIRST_RECORDS, folder / FIRST_RECORDS)
    lines = (template / META).read_text().splitlines()
    ids = {"cluster.id": cluster_id, "node.id": str(node_id), "directory.id": random_id()}
    kept = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    # Last and at once: a folder with it counts as formatted.
    new = meta.with_suffix(".new")
    new.write_text("".join(f"{key}={value}\n" for key, value in {**kept, **ids}.items()))
    new.rename(meta)
