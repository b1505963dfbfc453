"""Write what pip installs before the sources are there: `dependencies.py EXTRA...`.

`wanted.txt`: the dependencies of pyproject.toml with these extras. `versions.txt`: the versions of
requirements.lock, as constraints.
"""

import re
import sys
import tomllib
from pathlib import Path


def main(extras: list[str]) -> None:
    """Write both files into the working folder."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(name for extra in extras for name in optional[extra])]
    Path("wanted.txt").write_text("\n".join(wanted) + "\n")
    lock = Path("requirements.lock").read_text()
    # Constraints take no extras.
    pinned = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?(==[^\\\n]+)", lock, re.MULTILINE)
    Path("versions.txt").write_text("".join(f"{name}{version}\n" for name, version in pinned))


if __name__ == "__main__":
    main(sys.argv[1:])
