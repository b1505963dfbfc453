"""`python -m benchmarks [NAME...] [--quick] [--runs N]`: measure, print, write the results."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks import (
    copy_table,
    drain,
    fleet_scale,
    latency,
    reshard_apply,
    reshard_switch,
    spark_read,
    stream_clients,
    subscriber_read,
    workloads,
)
from benchmarks.caches import (
    client_calls,
    invalidations,
    refused_fills,
    staleness,
    wrong_entries,
)
from benchmarks.costs import cold_start, many_tables, memory, shard_costs
from benchmarks.figures import Figure
from benchmarks.machine import machine_facts
from benchmarks.report import RESULTS, print_facts, print_figures, write_results
from benchmarks.sinks import (
    database_apply,
    database_beside_jdbc,
    database_mysql,
    state_merge,
    topics_beside_debezium,
)
from benchmarks.stack import Stack
from event_token.errors import ShardstreamError, UsageError

RUNS = 3
RUNS_QUICK = 1
# Ten turns of everything take most of an hour; more is a typing error.
RUNS_MAX = 10
REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run of the program measures."""

    names: tuple[str, ...]
    runs: int
    quick: bool


Group = Callable[[Stack, Plan, tuple[str, ...]], list[Figure]]


def _drain(stack: Stack, plan: Plan, names: tuple[str, ...]) -> list[Figure]:
    return drain.DrainBenchmark(stack).run(workloads.workloads(names, quick=plan.quick), plan.runs)


def _spark(stack: Stack, plan: Plan, names: tuple[str, ...]) -> list[Figure]:
    return spark_read.run(stack, names, runs=plan.runs, quick=plan.quick)


def _copy(stack: Stack, plan: Plan, names: tuple[str, ...]) -> list[Figure]:
    return copy_table.run(stack, names, runs=plan.runs, quick=plan.quick)


def _reshard_apply(stack: Stack, plan: Plan, names: tuple[str, ...]) -> list[Figure]:
    return reshard_apply.run(stack, names, runs=plan.runs, quick=plan.quick)


def _reshard_switch(stack: Stack, plan: Plan, names: tuple[str, ...]) -> list[Figure]:
    return reshard_switch.run(stack, names, runs=plan.runs)


def _of(run: Callable[..., list[Figure]]) -> Group:
    return lambda stack, plan, names: run(stack, names, runs=plan.runs, quick=plan.quick)


GROUPS: dict[tuple[str, ...], Group] = {
    # First, because it warms up the broker, whose JIT compiler uses part of the CPU until then.
    latency.NAMES: _of(latency.run),
    (staleness.NAME,): _of(staleness.run),
    workloads.NAMES: _drain,
    (spark_read.NOOP, spark_read.NARROW, spark_read.CHANGELOG): _spark,
    subscriber_read.NAMES: _of(subscriber_read.run),
    stream_clients.NAMES: _of(stream_clients.run),
    cold_start.NAMES: _of(cold_start.run),
    memory.NAMES: _of(memory.run),
    copy_table.NAMES: _copy,
    reshard_apply.NAMES: _reshard_apply,
    reshard_switch.NAMES: _reshard_switch,
    client_calls.NAMES: _of(client_calls.run),
    invalidations.NAMES: _of(invalidations.run),
    refused_fills.NAMES: _of(refused_fills.run),
    (wrong_entries.NAME,): _of(wrong_entries.run),
    state_merge.NAMES: _of(state_merge.run),
    (database_mysql.NAME,): _of(database_mysql.run),
    database_apply.NAMES: _of(database_apply.run),
    fleet_scale.NAMES: _of(fleet_scale.run),
    shard_costs.NAMES: _of(shard_costs.run),
    (database_beside_jdbc.NAME,): _of(database_beside_jdbc.run),
    (topics_beside_debezium.NAME,): _of(topics_beside_debezium.run),
    # Last: its tables would be in the way of others on the same server.
    many_tables.NAMES: _of(many_tables.run),
}
NAMES = tuple(name for group in GROUPS for name in group)


def chosen_names(asked: Sequence[str]) -> tuple[str, ...]:
    """Return the benchmarks whose names begin with one of those given; all if none is given.

    Raises UsageError for a name that matches none.
    """
    for prefix in asked:
        if not any(name.startswith(prefix) for name in NAMES):
            message = f"no benchmark is called {prefix!r}; there are: {', '.join(NAMES)}"
            raise UsageError(message)
    return tuple(name for name in NAMES if not asked or name.startswith(tuple(asked)))


def read_plan(arguments: Sequence[str]) -> Plan:
    """Parse the command line. Raises UsageError for what cannot be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"beginnings of names; all of: {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="one turn, less time and noisier")
    parser.add_argument("--runs", type=int, help=f"turns; default {RUNS}, quick {RUNS_QUICK}")
    options = parser.parse_args(arguments)
    default = RUNS_QUICK if options.quick else RUNS
    runs = default if options.runs is None else options.runs
    if not 1 <= runs <= RUNS_MAX:
        message = f"--runs {runs} is not in 1..{RUNS_MAX}"
        raise UsageError(message)
    return Plan(chosen_names(options.names), runs, options.quick)


def measure(plan: Plan, console: Console, facts: dict[str, str]) -> tuple[list[Figure], list[str]]:
    """Run the groups one after the other; return the figures and what failed.

    The servers' versions are added to `facts`.
    """
    figures: list[Figure] = []
    failures: list[str] = []
    with (
        tempfile.TemporaryDirectory(
            prefix="shardstream-bench-", ignore_cleanup_errors=True
        ) as name,
        Stack(Path(name).resolve(), console) as stack,
    ):
        for group, run in GROUPS.items():
            names = tuple(name for name in group if name in plan.names)
            if not names:
                continue
            console.print(f"[bold]{', '.join(names)}[/]")
            try:
                figures += run(stack, plan, names)
            except ShardstreamError as error:
                # The other figures are still useful; the exit status tells that some are missing.
                failures.append(f"{', '.join(names)}: {error}")
                console.print(failures[-1], style="red", markup=False)
        facts.update(stack.versions())
    return figures, failures


def main(arguments: Sequence[str]) -> int:
    """Measure, print and write; return the exit status."""
    # The measured processes import the same sources.
    os.environ["PYTHONPATH"] = str(REPOSITORY)
    console = Console()
    plan = read_plan(arguments)
    facts = machine_facts()
    print_facts(console, facts)
    begun_s = time.monotonic()
    figures, failures = measure(plan, console, facts)
    facts["took"] = f"{time.monotonic() - begun_s:.0f} s"
    facts["turns"] = f"{plan.runs}{', quick' if plan.quick else ''}"
    print_figures(console, figures)
    path = write_results(figures, facts, RESULTS)
    console.print(f"{path} written after {facts['took']}", highlight=False)
    for failure in failures:
        console.print(f"failed: {failure}", style="bold red", markup=False)
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
