"""A headless Chromium from Debian's packages: unpacked with its libraries, not installed."""

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from event_token import UsageError
from shardstream.local.fetching import cached, debian_obstacle, quiet, unpack_packages

PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core")
PROGRAM = "chromium-headless-shell"
# Tests run as root, where Chromium has no sandbox; the rest keeps it from asking other hosts.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Fontconfig's own configuration names the folders of the host.
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><cachedir>{cache}</cachedir></fontconfig>
"""


@contextmanager
def headless_chromium(folder: Path) -> Iterator[Browser]:
    """Start the browser; `folder` is for its files."""
    program, environment = find_chromium(folder)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=list(ARGUMENTS), env={**os.environ, **environment}
        )
        try:
            yield browser
        finally:
            browser.close()


def find_chromium(folder: Path) -> tuple[Path, dict[str, str]]:
    """Return the program and the environment it needs; fetch it if necessary.

    Raises UsageError with the reason if it is not available here.
    """
    if found := shutil.which(PROGRAM):
        return Path(found), {}
    if obstacle := debian_obstacle():
        raise UsageError(f"no {PROGRAM} on PATH, and it is not unpacked: {obstacle}")
    # The host's own release: its loader is the one that runs the unpacked libc.
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    root = cached(
        f"{PROGRAM}-{release}", lambda made: unpack_packages(made, release, PACKAGES, quiet)
    )
    libraries = sorted(root.glob("usr/lib/*-linux-gnu"))
    fonts = folder / "fonts.conf"
    fonts.write_text(_FONTS.format(fonts=root / "usr/share/fonts", cache=folder / "fonts"))
    environment = {
        "LD_LIBRARY_PATH": ":".join(f"{path}:{path}/pulseaudio" for path in libraries),
        "FONTCONFIG_FILE": str(fonts),
    }
    return root / "usr/lib/chromium" / PROGRAM, environment
