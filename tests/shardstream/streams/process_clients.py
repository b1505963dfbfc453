"""Clients of streams that others have written: curl, Node, Go, Java with Arrow, Chromium."""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pyspark
from playwright._impl._driver import compute_driver_executable
from playwright.sync_api import Browser

from shardstream.local.cache_server import CacheBinary, find_server
from shardstream.local.fetching import cache_folder, java_command
from shardstream.local.processes import with_parent_guard
from shardstream.streams.encoding import EVENT_NAMES
from tests.shardstream.streams.received import Received, received
from tests.shardstream.streams.stream_server import SSE
from tests.waiting import wait_for

CURL = CacheBinary("curl", "curl")
GO = CacheBinary("go", "golang-go")
SOURCES = Path(__file__).parent
# What Arrow's reader needs of PySpark's jars: all of them take the compiler seconds.
ARROW_JARS = ("arrow-", "flatbuffers-", "jackson-", "netty-buffer", "netty-common", "slf4j-api")
# The standard library is compiled once per machine, which takes a minute.
COMPILE_S_MAX = 600
_WATCH = """([url, names]) => {
  window.got = [];
  const source = new EventSource(url);
  for (const name of names) {
    source.addEventListener(name, (event) => {
      if (event.data !== undefined) window.got.push([name, event.lastEventId, event.data]);
    });
  }
}"""


class ProcessClient:
    """A client whose output is a stream of server-sent events."""

    def __init__(self, path: Path, command: Sequence[str]) -> None:
        """`path`: for its output."""
        self._path = path
        with path.open("wb") as out:
            self._process = subprocess.Popen(with_parent_guard(command), stdout=out)

    @property
    def events(self) -> list[Received]:
        """What it has received so far; what no id covers yet would come again."""
        # Only a line feed ends a line; `splitlines` knows others, which JSON may contain.
        lines = self._path.read_bytes().decode("utf-8", "ignore").split("\n")
        found = list(received(f"{line}\n" for line in lines[:-1]))
        while found and not found[-1].id:
            found.pop()
        return found

    def wait_end(self) -> list[Received]:
        """Wait until it has noticed that the server is gone; return what it had received."""
        wait_for("its end", lambda: self._process.poll() is not None)
        return self.events

    def stop(self) -> None:
        """Send SIGSTOP: it reads nothing until `go_on`."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Send SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> list[Received]:
        """Send SIGKILL; return what it had received."""
        self._process.kill()
        self._process.wait()
        return self.events


class PageClient:
    """A page in Chromium whose EventSource comes back by itself when the server is gone."""

    def __init__(self, browser: Browser, url: str) -> None:
        """Open a page of the server, so that it asks for its own site."""
        self._page = browser.new_page()
        self._page.goto(f"{url.partition('/v1/')[0]}/docs/runbook.md")
        self._page.evaluate(_WATCH, [url, EVENT_NAMES])

    @property
    def events(self) -> list[Received]:
        """What it has received so far."""
        shown = self._page.evaluate("() => window.got")
        return [Received(name, event_id, json.loads(text)) for name, event_id, text in shown]

    def kill(self) -> list[Received]:
        """Close the page; return what it had received."""
        found = self.events
        self._page.close()
        return found


def curl(path: Path, url: str, last_id: str = "") -> ProcessClient:
    """A curl that prints a stream, and nothing where it is refused."""
    command = [*find_server(CURL), "--silent", "--fail", "--no-buffer", url]
    command += ["--header", f"Accept: {SSE}"]
    if last_id:
        command += ["--header", f"Last-Event-ID: {last_id}"]
    return ProcessClient(path, command)


def node(path: Path, url: str) -> ProcessClient:
    """The EventSource of Playwright's Node; it ends when it is refused, or cut off."""
    program = compute_driver_executable()[0]
    script = str(SOURCES / "event_source.mjs")
    command = [program, "--experimental-eventsource", "--no-warnings", script]
    return ProcessClient(path, [*command, url, *EVENT_NAMES])


def java(path: Path, url: str, last_id: str = "") -> ProcessClient:
    """Java's HttpClient with Arrow's reader, which comes with PySpark."""
    jars = (Path(pyspark.__file__).parent / "jars").glob("*.jar")
    needed = ":".join(str(jar) for jar in jars if jar.name.startswith(ARROW_JARS))
    opens = "--add-opens=java.base/java.nio=ALL-UNNAMED"
    source = str(SOURCES / "ArrowLines.java")
    return ProcessClient(path, [java_command(), opens, "-cp", needed, source, url, last_id])


def compiled_go(folder: Path) -> str:
    """Compile the client in Go; return its path."""
    program = str(folder / "lines")
    command = find_server(GO)
    settings = {
        "CGO_ENABLED": "0",
        "GO111MODULE": "off",
        "GOCACHE": str(cache_folder() / "go-build"),
        "GOTOOLCHAIN": "local",
    }
    if len(command) > 1:  # unpacked: by a loader, so Go cannot tell where it lies
        settings["GOROOT"] = str(Path(command[-1]).resolve().parents[1])
    done = subprocess.run(
        [*command, "build", "-o", program, str(SOURCES / "lines.go")],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=COMPILE_S_MAX,
    )
    assert done.returncode == 0, done.stderr
    return program


def last_id(events: Sequence[Received]) -> str:
    """Where to go on."""
    return next(each.id for each in reversed(events) if each.id)
