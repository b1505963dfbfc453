"""Servers from Debian's packages: unpacked with all their libraries, not installed."""

import platform
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from event_token import Retry, UsageError
from shardstream.local.fetching.binaries import run_step
from shardstream.local.fetching.cache import Report

ORIGIN = "Debian's packages"
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


def own_loader(root: Path, *library_folders: Path) -> tuple[str, ...]:
    """Return how to run programs of an unpacked tree: by its own loader, on any host's libc.

    `library_folders`: further ones. Raises UsageError if the tree is incomplete.
    """
    # Before Debian 12 /lib was not yet a link to /usr/lib.
    libraries = sorted([*root.glob("lib/*-linux-gnu*"), *root.glob("usr/lib/*-linux-gnu*")])
    loader = next((found for part in libraries for found in part.glob("ld-linux*.so*")), None)
    if loader is None:
        message = f"{root} holds no loader or no libraries: remove it, it will be fetched again"
        raise UsageError(message)
    path = ":".join(map(str, [*libraries, *library_folders]))
    return (str(loader), "--library-path", path)
