"""The command `docker`, of the machine or of the engine made here."""

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.repository import ROOT

ANSWER_S_MAX = 30
# What the tests are told.
PROGRAM_VARIABLE = "SHARDSTREAM_DOCKER"
FILE_VARIABLE = "SHARDSTREAM_COMPOSE_FILE"


@dataclass(frozen=True, slots=True)
class Docker:
    """How to call the client, and what it has to be given.

    `program`: takes the arguments of `docker`, those of `docker compose` too. `repository`: where
    the engine sees the checkout. `host`: for other clients of the engine, "" for the default.
    `images`: variables that name the images of docker/compose.yaml.
    """

    program: str
    repository: Path
    host: str = ""
    images: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str) -> str:
        """Run the client; return what it prints."""
        command = [self.program, *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def answers(self) -> bool:
        """Whether the engine answers."""
        return _answers(self.program, "info")

    @property
    def compose_file(self) -> Path:
        """The stack, as the engine sees it."""
        return self.repository / "docker" / "compose.yaml"


def machine_engine() -> Docker | None:
    """Return the commands of the machine's engine, with Compose 2; None if none answers."""
    if shutil.which("docker") is None or not _answers("docker", "info"):
        return None
    return Docker("docker", ROOT) if _answers("docker", "compose", "version") else None


def _answers(*command: str) -> bool:
    try:
        done = subprocess.run(command, check=False, capture_output=True, timeout=ANSWER_S_MAX)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
