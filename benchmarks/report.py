"""The table on the terminal and the files in benchmarks/results."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure

RESULTS = Path(__file__).with_name("results")
LATEST = "latest.json"
MACHINE = "machine.json"


def print_facts(console: Console, facts: Mapping[str, str]) -> None:
    """Print the machine and the versions on one line."""
    console.print("  ".join(f"[dim]{name}[/] {value}" for name, value in facts.items()))


def print_figures(console: Console, figures: Sequence[Figure]) -> None:
    """Print the figures as a table."""
    table = Table(
        title="medians over the turns; ratio = ours / theirs of a turn", title_justify="left"
    )
    table.add_column("benchmark")
    table.add_column("unit")
    table.add_column("ours", justify="right")
    table.add_column("theirs", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("peer")
    table.add_column("runs", justify="right")
    for line in figures:
        table.add_row(
            line.name,
            line.unit,
            readable(line.ours),
            "" if line.theirs is None else readable(line.theirs),
            "" if line.ratio is None else f"{line.ratio:.2f}",
            line.peer or "",
            str(len(line.runs)),
        )
    console.print(table)


def readable(value: float) -> str:
    """Format a figure: thousands with separators, small ones with their decimals."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def write_results(
    figures: Sequence[Figure], facts: Mapping[str, str], folder: Path = RESULTS
) -> Path:
    """Write latest.json (the figures) and machine.json (where they were measured).

    Figures of benchmarks that did not run now stay as they were. Return the path of the former.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LATEST
    before = json.loads(path.read_text()) if path.exists() else []
    lines = {line["name"]: line for line in before}
    lines |= {line.name: line.to_json_dict() for line in figures}
    _write(folder / MACHINE, dict(facts))
    _write(path, list(lines.values()))
    return path


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
