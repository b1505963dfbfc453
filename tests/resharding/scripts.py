"""Scripts for the servers' own client, which `reshard create` prints."""

import re
from typing import Any

PRINTED = re.compile(r"^DELIMITER //$.*?^DELIMITER ;$", re.MULTILINE | re.DOTALL)


def printed_scripts(output: str) -> list[str]:
    """The scripts in the output of a command."""
    return PRINTED.findall(output)


def run_script(cursor: Any, script: str) -> None:
    """Run a script as the servers' own client does, with its DELIMITER."""
    delimiter = ";"
    statement = ""
    for line in script.splitlines():
        if line.startswith("DELIMITER "):
            delimiter = line.removeprefix("DELIMITER ")
            continue
        statement += f"{line}\n"
        if line.endswith(delimiter):
            cursor.execute(statement.strip().removesuffix(delimiter))
            statement = ""
    assert not statement.strip()
