"""A command that prints tokens for the brokers of `listeners`, and the clients that use it."""

import json
import sys
from pathlib import Path

from tests.faults.listeners import ListeningCluster
from topics.kafka.client import ClientConfig

LIFE_S = 4
# Prints a token that nobody signed, counts, and notes who asks; fails while a file `away` stands
# beside the count, and prints one that brokers refuse while `stale` does.
PROGRAM = """
import base64, json, os, pathlib, sys, time
folder, life_s = pathlib.Path(sys.argv[1]), int(sys.argv[2])
with (folder / "runs").open("a") as runs:
    runs.write("x")
with (folder / "askers").open("a") as askers:
    askers.write(f"{os.getppid()} ")
if (folder / "away").exists():
    sys.exit("the identity provider is away")
now = time.time()
end = now - 60 if (folder / "stale").exists() else now + life_s
claims = {"sub": "app", "iat": end - life_s, "exp": end}
parts = [base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=")
         for p in ({"alg": "none"}, claims)]
token = {"token": ".".join([*parts, ""]), "expires_at": now + life_s, "principal": "app"}
print(json.dumps(token))
"""


def with_tokens(cluster: ListeningCluster, folder: Path, life_s: int = LIFE_S) -> ClientConfig:
    """Return the settings of clients whose command runs in a folder of the test."""
    command = [sys.executable, "-S", "-c", PROGRAM, str(folder), str(life_s)]
    return ClientConfig(
        {
            "bootstrap.servers": cluster.for_tokens,
            "security.protocol": "sasl_plaintext",
            "oauth.command": json.dumps(command),
        }
    )


def runs(folder: Path) -> int:
    """How often the command has run."""
    return len((folder / "runs").read_text())
