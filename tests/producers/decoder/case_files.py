"""Hazards as data: `tests/cases/<name>/case.sql` and what it must give.

Statements end at a line's end with `;`. `-- only: mysql` (or mariadb) as the first line leaves
the other family out, and `-- since: mariadb 10.7, the type UUID` the servers before that version,
which refuse a statement or an option of the case (tests/producers/versions sees that they do).
`expect.json` (or `expect.mysql.json`, `expect.mariadb.json`, which win, and from that version on
`expect.mariadb-11.5.json`) holds either the list of events, each with the fields that the case is
about, or `{"error": class name, "says": [texts of its message]}`. The text `{db}` stands for the
schema. A `types.json` declares columns of MariaDB, as the setting `typed_columns` does; without it
all are declared as bytes. A `server.cnf` with one option a line gives the case a server of its own,
which it shares with all cases that have the same options.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from databases.server_facts import version_of
from event_token import Flavor, UsageError
from producers.typed_columns import BYTES, TypedColumns
from shardstream.local.database_binaries import find_mariadb, find_mysql

CASES = Path(__file__).resolve().parents[2] / "cases"
SINCE = re.compile(r"^-- since: (\w+) ([\d.]+), \S", re.MULTILINE)

Version: TypeAlias = tuple[int, int, int]
NEWEST: Version = (99, 0, 0)


@dataclass(frozen=True)
class Case:
    """One hazard on one family."""

    name: str
    flavor: Flavor
    statements: tuple[str, ...]
    expected: Any
    server_options: tuple[str, ...] = ()
    declared: tuple[tuple[str, str], ...] = ()
    since: Version = (0, 0, 0)

    def typed_columns(self, database: str) -> TypedColumns:
        """What its columns are declared as."""
        return TypedColumns({name.replace("{db}", database): t for name, t in self.declared})

    def __str__(self) -> str:
        return f"{self.name}-{self.flavor.value}"


@cache
def all_cases() -> list[Case]:
    """Every case for the servers of both families that the fixtures start."""
    versions = {flavor: version_on_hand(flavor) for flavor in Flavor}
    return [
        case
        for flavor, version in versions.items()
        for case in cases_for(flavor, version)
        if case.since <= version
    ]


def version_on_hand(flavor: Flavor) -> Version:
    """The version of the server that the fixtures start."""
    try:
        found = find_mysql() if flavor is Flavor.MYSQL else find_mariadb()
    except UsageError:
        return NEWEST  # the fixture says why there is none
    return version_of(found.version)


@cache
def cases_for(flavor: Flavor, version: Version) -> list[Case]:
    """Every case of a family with what it gives on a version, also where `since` is later."""
    found = []
    for folder in sorted(path for path in CASES.iterdir() if path.is_dir()):
        text = (folder / "case.sql").read_text()
        first = text.splitlines()[0]
        if first.startswith("-- only: ") and first != f"-- only: {flavor.value}":
            continue
        found.append(
            Case(
                folder.name,
                flavor,
                _statements(text),
                json.loads(_expected(folder, flavor, version).read_text()),
                _server_options(folder / "server.cnf"),
                _declared(folder / "types.json"),
                dict(_since(text)).get(flavor, (0, 0, 0)),
            )
        )
    return found


def _since(text: str) -> list[tuple[Flavor, Version]]:
    marked = SINCE.findall(text)
    assert len(marked) == text.count("-- since"), f"a version without its reason: {text[:80]}"
    return [(Flavor(family), version_of(number)) for family, number in marked]


def _expected(folder: Path, flavor: Flavor, version: Version) -> Path:
    own = {version_of(p.stem.partition("-")[2]): p for p in folder.glob(f"expect.{flavor}-*.json")}
    newest = max((number for number in own if number <= version), default=None)
    if newest is not None:
        return own[newest]
    of_family = folder / f"expect.{flavor}.json"
    return of_family if of_family.exists() else folder / "expect.json"


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
