"""Hazards as data: `tests/cases/<name>/case.sql` and what it must give.

Statements end at a line's end with `;`. `-- only: mysql` (or mariadb) as the first line leaves
the other family out. `expect.json` (or `expect.mysql.json`, `expect.mariadb.json`, which win)
holds either the list of events, each with the fields that the case is about, or
`{"error": class name, "says": [texts of its message]}`. The text `{db}` stands for the schema.
A `types.json` declares columns of MariaDB, as the setting `typed_columns` does; without it all are
declared as bytes.
A `server.cnf` with one option a line gives the case a server of its own, which it shares with all
cases that have the same options.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from event_token import Flavor
from producers.typed_columns import BYTES, TypedColumns

CASES = Path(__file__).resolve().parents[2] / "cases"


@dataclass(frozen=True)
class Case:
    """One hazard on one family."""

    name: str
    flavor: Flavor
    statements: tuple[str, ...]
    expected: Any
    server_options: tuple[str, ...] = ()
    declared: tuple[tuple[str, str], ...] = ()

    def typed_columns(self, database: str) -> TypedColumns:
        """What its columns are declared as."""
        return TypedColumns({name.replace("{db}", database): t for name, t in self.declared})

    def __str__(self) -> str:
        return f"{self.name}-{self.flavor.value}"


def all_cases() -> list[Case]:
    """Every case for every family that it is for."""
    found = []
    for folder in sorted(path for path in CASES.iterdir() if path.is_dir()):
        text = (folder / "case.sql").read_text()
        for flavor in Flavor:
            first = text.splitlines()[0]
            if first.startswith("-- only: ") and first != f"-- only: {flavor.value}":
                continue
            own = folder / f"expect.{flavor.value}.json"
            expected = own if own.exists() else folder / "expect.json"
            found.append(
                Case(
                    folder.name,
                    flavor,
                    _statements(text),
                    json.loads(expected.read_text()),
                    _server_options(folder / "server.cnf"),
                    _declared(folder / "types.json"),
                )
            )
    return found


def _server_options(path: Path) -> tuple[str, ...]:
    if not path.exists():
        return ()
    return tuple(f"--{line.strip()}" for line in path.read_text().splitlines() if line.strip())


def _declared(path: Path) -> tuple[tuple[str, str], ...]:
    declared = json.loads(path.read_text()) if path.exists() else {"/.*/": BYTES}
    return tuple(declared.items())


def _statements(text: str) -> tuple[str, ...]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("--")]
    pieces = "\n".join(lines).split(";\n")
    return tuple(piece.strip().removesuffix(";") for piece in pieces if piece.strip())
