"""Runs the blocks of one page, one after the other, in a folder of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from shardstream.local.processes import with_parent_guard
from shardstream.settings.model import load_settings
from tests.docs.blocks import Block
from tests.docs.command_syntax import check_commands, check_reshards
from tests.docs.servers import PageServers
from tests.repository import ROOT

# Blocks take seconds; this is for a busy machine.
BLOCK_S_MAX = 400
STOP_S_MAX = 120
POLL_S = 0.1

# The passwords that the pages' settings read from variables.
SECRETS = {"DB_PASSWORD": "secret", "RESHARD_PASSWORD": "secret2"}


class PageRun:
    """A page's working folder, its servers, and what it has left running in the background."""

    def __init__(self, folder: Path, page: str) -> None:
        self._folder = folder
        self._servers = PageServers(folder, page)
        self._background: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("SHARDSTREAM_CONFIG")},
            **SECRETS,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def __enter__(self) -> Self:
        self._servers.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self._background:
            with suppress(ProcessLookupError):  # it has ended, with all that it started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._servers.__exit__(*exc_info)

    def run(self, block: Block) -> None:
        """Do what the block asks for; AssertionError with its output where that fails."""
        assert block.make_targets() <= make_targets()
        if (source := block.values.get("from")) is not None:
            code = _unindented((ROOT / source).read_text())
            assert _unindented(block.text) in code, f"line {block.line}: not in {source}"
            return
        if (name := block.values.get("file")) is not None:
            (self._folder / name).write_text(self._servers.replaced(block.text))
            return
        match block.language:
            case "shell" | "console" if "parse" in block.flags:
                check_commands(block.commands())
                check_reshards(block.commands(), self._folder / "shardstream.toml")
            case "shell" | "console":
                self._run_process(block, ["bash", "-euc", self._servers.replaced(block.commands())])
            case "python":
                program = self._folder / f"line_{block.line}.py"
                program.write_text(self._servers.replaced(block.text))
                self._run_process(block, [sys.executable, str(program)])
            case "toml":
                self._change_settings(block)
            case "sql":
                self._servers.run_sql(block.text, block.values.get("on"))
            case "json":
                json.loads(block.text)
            case _:
                pass

    def _change_settings(self, block: Block) -> None:
        path = self._folder / "shardstream.toml"
        text = self._servers.replaced(block.text)
        if not re.search(r"^\[kafka\]", text, re.MULTILINE):
            text = f"{path.read_text()}\n{text}"
        path = path.with_name("checked.toml") if "check" in block.flags else path
        path.write_text(text)
        load_settings(path)

    def _run_process(self, block: Block, command: list[str]) -> None:
        log = self._folder / f"line_{block.line}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                with_parent_guard(command),
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._background.append(process)
        wanted = re.compile(block.values["until"]) if "until" in block.values else None
        deadline_s = time.monotonic() + BLOCK_S_MAX
        while process.poll() is None and not (wanted and wanted.search(log.read_text())):
            if wanted is None and "background" in block.flags:
                return
            assert time.monotonic() < deadline_s, f"line {block.line} goes on:\n{log.read_text()}"
            time.sleep(POLL_S)
        if wanted is not None:
            assert wanted.search(log.read_text()), f"line {block.line}:\n{log.read_text()}"
            if "background" not in block.flags:
                self._end(process)
            return
        self._background.remove(process)
        status = int(block.values.get("exit", "0"))
        assert process.returncode == status, f"line {block.line}:\n{log.read_text()}"

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        """Ctrl-C, as a reader would; what it then says is no matter."""
        self._background.remove(process)
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(STOP_S_MAX)
        finally:
            process.kill()


def _unindented(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())


def make_targets() -> set[str]:
    """The targets of the Makefile."""
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
