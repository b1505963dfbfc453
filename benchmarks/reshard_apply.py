"""Filtered replication: one applier applies a backlog to one target, beside others' ways.

The peers get the same rows into the same kind of server: MySQL's client sends them in batches,
which is what the server takes from one session, and MySQL's own applier has them in a relay log.
"""

import gc
import threading
import time
from dataclasses import dataclass
from typing import Final

from benchmarks.binlog_fill import DATABASE, create_table, fill
from benchmarks.figures import Figure, Turn, figure
from benchmarks.our_producer import BenchKeyspace, OurProducer
from benchmarks.reshard_peers import (
    CLIENT,
    REPLICA,
    Applied,
    applied,
    by_client,
    by_replica,
    pid_of,
    write_statements,
)
from benchmarks.stack import Stack
from benchmarks.watch import cpu_seconds
from benchmarks.workloads import Workload
from databases.internal_tables import create_internal_tables
from event_token import Flavor
from event_token.errors import Halt
from resharding.apply.applier import ApplierSettings, run_applier
from resharding.bookkeeping import ReshardPlan, read_checkpoints, write_plan
from resharding.servers import ReshardServer, open_session
from shardstream.commands.reshard import GARBAGE_AFTER
from shardstream.local.database_server import MysqlServer
from topics.keyspace.topology import TableVindex
from topics.schemas import open_schema_ids
from topics.start.positions import resolve_start_of
from topics.start.start_forms import StartWord

SINGLE_ROW: Final = "reshard.apply_single_row"
ROWS_100: Final = "reshard.apply_rows_100"
NAMES: Final = (SINGLE_ROW, ROWS_100)
# By name: transactions, rows of each; half of the transactions in a quick run.
_SHAPES: Final = {SINGLE_ROW: (60_000, 1), ROWS_100: (2_000, 100)}
QUICK_SHARE: Final = 2
SOURCE: Final = "-"
TARGET: Final = "-.2"
LOG_S_MAX: Final = 300.0
POLL_S: Final = 0.02


def run(stack: Stack, names: tuple[str, ...], *, runs: int, quick: bool) -> list[Figure]:
    """Measure each workload `runs` times over the same stretch of the log."""
    gc.freeze()  # as the command does
    gc.set_threshold(GARBAGE_AFTER)
    figures = []
    for name in names:
        transactions, rows = _SHAPES[name]
        workload = Workload(name, transactions // (QUICK_SHARE if quick else 1), rows)
        stack.report(f"{name}: {workload.rows:,} rows into the log")
        figures += _figures(name, _measure(stack, workload, runs))
    return figures


@dataclass(frozen=True, slots=True)
class _Three:
    """One turn: ours, and right after it the peers'."""

    ours: Applied
    client: Applied
    replica: Applied


def _figures(name: str, turns: list[_Three]) -> list[Figure]:
    figures = []
    for suffix, peer in ((".beside_replica", REPLICA), (".beside_client", CLIENT)):
        theirs = [turn.replica if peer == REPLICA else turn.client for turn in turns]
        both = list(zip((turn.ours for turn in turns), theirs, strict=True))
        rates = [Turn(ours.rows_per_s, peers.rows_per_s) for ours, peers in both]
        cpu = [Turn(ours.cpu_us, peers.cpu_us) for ours, peers in both]
        cpu_name = f"{name}{suffix}.cpu"
        figures.append(figure(f"{name}{suffix}", "rows/s", rates, peer=peer))
        figures.append(figure(cpu_name, "processor us a row, with the server's", cpu, peer=peer))
    own = [Turn(turn.ours.own_us) for turn in turns]
    return [
        figure(name, "rows/s", [Turn(turn.ours.rows_per_s) for turn in turns]),
        figure(f"{name}.cpu", "processor us a row, without the server's", own),
        *figures,
    ]


def _measure(stack: Stack, workload: Workload, runs: int) -> list[_Three]:
    source, target = stack.mysql(0), stack.mysql(1)
    create_table(source, workload)
    create_table(target, workload)
    brokers = stack.kafka().bootstrap_servers
    keyspace = BenchKeyspace(stack.folder, f"apply{workload.table}", brokers, {SOURCE: source})
    waiting = fill(source, workload)
    statements = stack.folder / f"{workload.table}.sql"
    write_statements(source, workload, statements)
    replica = stack.replica_of(source)
    producer = OurProducer(keyspace, SOURCE, start=f"gtid:{waiting.start}")
    producer.start()
    try:
        # It keeps running through the turns: its heartbeats make the last rows readable.
        _wait_for_log(producer, workload.rows)
        start = resolve_start_of(
            StartWord.EARLIEST,
            config=keyspace.client,
            keyspace=keyspace.name,
            shards=[SOURCE],
            schema_ids=open_schema_ids(keyspace.client, None),
        )
        turns = []
        for number in range(runs):
            ours = _apply(keyspace, target, workload, start.to_string(), number)
            client = by_client(target, workload, statements)
            turns.append(_Three(ours, client, by_replica(source, replica, workload, waiting)))
        return turns
    finally:
        producer.stop()


def _wait_for_log(producer: OurProducer, seq: int) -> None:
    deadline_s = time.monotonic() + LOG_S_MAX
    while producer.last_seq() < seq:
        producer.check_alive()
        if time.monotonic() > deadline_s:
            raise Halt(f"the log has not reached seq {seq} within {LOG_S_MAX:g} s")
        time.sleep(POLL_S)


def _plan(keyspace: BenchKeyspace, workload: Workload, start: str, number: int) -> ReshardPlan:
    return ReshardPlan(
        reshard_id=f"{workload.table}-{number}".replace("_", "-"),
        keyspace=keyspace.name,
        sources=(SOURCE,),
        targets=(TARGET,),
        tables=(TableVindex(DATABASE, workload.table, ("id",), "hash"),),
        start=start,
        agreed_seqs={SOURCE: 0},
    )


def _apply(
    keyspace: BenchKeyspace, server: MysqlServer, workload: Workload, start: str, number: int
) -> Applied:
    """Apply in a thread, and return what it took from the first commit seen to the last.

    The CPU time is that of this process, which looks at the checkpoint every POLL_S.
    """
    target = ReshardServer(
        server.host, server.port, server.root_user, "", shard=TARGET, flavor=Flavor.MYSQL
    )
    plan = _plan(keyspace, workload, start, number)
    connection = open_session(target)
    stop = threading.Event()
    failed: list[BaseException] = []
    samples: list[_Sample] = []

    def apply() -> None:
        try:
            run_applier(ApplierSettings(plan, target, keyspace.client), stop)
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that measures
            failed.append(error)

    thread = threading.Thread(target=apply, daemon=True)
    try:
        create_internal_tables(connection)
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {DATABASE}.{workload.table}")
        write_plan(connection, plan)
        thread.start()
        while not samples or samples[-1][0] < workload.rows:
            if failed:
                raise Halt(f"the applier ended: {failed[0]}") from failed[0]
            seq = read_checkpoints(connection, plan.reshard_id)[SOURCE].seq
            if seq > 0:
                cpu_s = cpu_seconds(pid_of(server))
                samples.append((seq, time.monotonic(), time.process_time(), cpu_s))
            time.sleep(POLL_S)
    finally:
        stop.set()
        if thread.is_alive():
            thread.join()
        connection.close()
    return _between(workload, samples[0], samples[-1])


_Sample = tuple[int, float, float, float]  # seq, time, CPU time of this process and of the server


def _between(workload: Workload, first: _Sample, last: _Sample) -> Applied:
    if last[0] == first[0]:
        raise Halt(f"{workload.name}: all rows arrived at once: too few to measure")
    rows, took_s, own_s, server_s = (b - a for a, b in zip(first, last, strict=True))
    return applied(int(rows), took_s, own_s, server_s)
