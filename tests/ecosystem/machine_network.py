"""What this machine's pip and apt need to reach their registries, for builds of images."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

# What says where packages come from; everything else in pip's configuration is about this machine.
PIP_SETTINGS = (
    *("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout"),
    "retries",
)
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
IN_IMAGE = "/etc/ssl/certs/ca-certificates.crt"


def write_configuration(folder: Path) -> None:
    """Write pip.conf, apt.conf, auth.conf and the certificates into a folder of a build."""
    (folder / "pip.conf").write_text(_pip_configuration())
    (folder / "apt.conf").write_text(_apt_configuration())
    credentials = Path("/etc/apt/auth.conf")
    (folder / "auth.conf").write_text(credentials.read_text() if credentials.exists() else "")
    certificates = Path(os.environ.get("PIP_CERT") or CERTIFICATES)
    shutil.copy(certificates, folder / "ca-certificates.crt")


def proxies() -> dict[str, str]:
    """Return the proxy variables of the environment, which docker passes as build arguments."""
    names = ("http_proxy", "https_proxy", "no_proxy")
    both = (*names, *(name.upper() for name in names))
    return {name: os.environ[name] for name in both if name in os.environ}


def _pip_configuration() -> str:
    """Return pip's own view of its files and variables, the variables last, as pip has them."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    settings = {"disable-pip-version-check": "true", "cert": IN_IMAGE}
    for line in told.splitlines():
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        if key in PIP_SETTINGS:
            settings[key] = str(ast.literal_eval(value)).replace("\n", "\n    ")
    return "".join(["[global]\n", *(f"{key} = {value}\n" for key, value in settings.items())])


def _apt_configuration() -> str:
    """Return how apt fetches on this machine: proxies, checks, retries."""
    command = ["apt-config", "dump", "Acquire"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # Image layers hold no package lists, in whatever form.
    kept = [line for line in told.splitlines() if not line.startswith("Acquire::IndexTargets")]
    return "\n".join(kept) + "\n"
