"""Filtered replication: rows per second that one applier applies to one target, from a backlog."""

import threading
import time
from typing import Final

from benchmarks.binlog_fill import DATABASE, create_table, fill
from benchmarks.figures import Figure, Turn, figure
from benchmarks.our_producer import BenchKeyspace, OurProducer
from benchmarks.stack import Stack
from benchmarks.workloads import Workload
from databases.internal_tables import create_internal_tables
from event_token import Flavor
from event_token.errors import Halt
from resharding.apply.applier import ApplierSettings, run_applier
from resharding.bookkeeping import read_checkpoints, write_plan
from resharding.plan.reshard_plan import ReshardPlan
from resharding.server import ReshardServer, open_session
from shardstream.local.database_server import MysqlServer
from topics.keyspace.topology import TableVindex
from topics.schemas.registry import open_schema_ids
from topics.start.positions import resolve_start_of
from topics.start.start_forms import StartWord

SINGLE_ROW: Final = "reshard.apply_single_row"
ROWS_100: Final = "reshard.apply_rows_100"
NAMES: Final = (SINGLE_ROW, ROWS_100)
# By name: transactions, rows of each; a fifth of the transactions in a quick run.
_SHAPES: Final = {SINGLE_ROW: (30_000, 1), ROWS_100: (1_000, 100)}
QUICK_SHARE: Final = 5
SOURCE: Final = "-"
TARGET: Final = "-.2"
LOG_S_MAX: Final = 300.0
POLL_S: Final = 0.02


def run(stack: Stack, names: tuple[str, ...], *, runs: int, quick: bool) -> list[Figure]:
    """Measure each workload `runs` times over the same stretch of the log."""
    figures = []
    for name in names:
        transactions, rows = _SHAPES[name]
        workload = Workload(name, transactions // (QUICK_SHARE if quick else 1), rows)
        stack.report(f"{name}: {workload.rows:,} rows into the log")
        figures.append(figure(name, "rows/s", _measure(stack, workload, runs)))
    return figures


def _measure(stack: Stack, workload: Workload, runs: int) -> list[Turn]:
    source, target = stack.mysql(0), stack.mysql(1)
    create_table(source, workload)
    create_table(target, workload)
    brokers = stack.kafka().bootstrap_servers
    keyspace = BenchKeyspace(stack.folder, f"apply{workload.table}", brokers, {SOURCE: source})
    waiting = fill(source, workload)
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
        return [Turn(_apply(keyspace, target, workload, start.to_string(), n)) for n in range(runs)]
    finally:
        producer.stop()


def _wait_for_log(producer: OurProducer, seq: int) -> None:
    deadline_s = time.monotonic() + LOG_S_MAX
    while producer.last_seq() < seq:
        producer.check_alive()
        if time.monotonic() > deadline_s:
            raise Halt(f"the log has not reached seq {seq} within {LOG_S_MAX:g} s")
        time.sleep(POLL_S)


def _apply(
    keyspace: BenchKeyspace, server: MysqlServer, workload: Workload, start: str, number: int
) -> float:
    """Return rows per second from the first commit seen to the last."""
    target = ReshardServer(
        server.host, server.port, server.root_user, "", shard=TARGET, flavor=Flavor.MYSQL
    )
    plan = ReshardPlan(
        reshard_id=f"{workload.table}-{number}".replace("_", "-"),
        keyspace=keyspace.name,
        sources=(SOURCE,),
        targets=(TARGET,),
        tables=(TableVindex(DATABASE, workload.table, ("id",), "hash"),),
        start=start,
        agreed_seqs={SOURCE: 0},
    )
    connection = open_session(target)
    stop = threading.Event()
    failed: list[BaseException] = []

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
        samples: list[tuple[float, int]] = []
        while not samples or samples[-1][1] < workload.rows:
            if failed:
                raise Halt(f"the applier ended: {failed[0]}") from failed[0]
            seq = read_checkpoints(connection, plan.reshard_id)[SOURCE].seq
            if seq > 0:
                samples.append((time.monotonic(), seq))
            time.sleep(POLL_S)
    finally:
        stop.set()
        if thread.is_alive():
            thread.join()
        connection.close()
    (first_s, first), (last_s, last) = samples[0], samples[-1]
    if last == first:
        raise Halt(f"{workload.name}: all rows arrived at once: too few to measure")
    return (last - first) / (last_s - first_s)
