"""A producer's life on brokers of a service, and a reshard on services alone."""

import random
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from event_token import Flavor
from tests.database_servers import StartServer
from tests.faults.tokens import runs, with_tokens
from tests.managed.database_services import (
    AURORA_MYSQL,
    AZURE_MYSQL,
    CLOUD_SQL,
    RDS_MARIADB,
    RDS_MYSQL,
    Service,
    behind,
    bookkeeping,
    served,
)
from tests.managed.database_services import make_tables as make_service_tables
from tests.managed.kafka_services import MIB, ManagedCluster, check_topics, provision_all
from tests.managed.results import RecordProperty, measured
from tests.producers.copy.copying import (
    check_changes_once,
    check_copied_log,
    replay_upserts,
    server_rows,
    start,
    wait_state,
)
from tests.producers.servers.replication import start_pair, statements, wait_followed, wait_same
from tests.producers.session.producing import (
    RunningProducer,
    check_progress,
    progress_of,
    read_log,
    server_of,
    settings_of,
    wait_caught_up,
)
from tests.producers.session.workload import Workload, process
from tests.resharding.application import write_old_rows
from tests.resharding.flow import flow, reading, wait_read
from tests.resharding.operating import Application, complete, follow, switch_over
from tests.resharding.shards import fresh_schema
from tests.resharding.stream_checks import check_order, check_origins, replayed, served_part
from tests.resharding.writers import at_work, make_tables, rows_of
from tests.waiting import wait_for
from topics.progress.copy_topic import CopyState

# Each lives for four seconds and is replaced before.
TOKENS_MIN = 5
# Beyond what each of the services takes in one message.
LARGE_BYTES = {
    "msk-serverless": 10 * MIB,
    "confluent-basic": 10 * MIB,
    "confluent-dedicated": 24 * MIB,
}
PACKETS = ("--max-allowed-packet=64M",)
# Whose rows go to each.
FLAVORS = {
    "msk-serverless": Flavor.MYSQL,
    "confluent-basic": Flavor.MARIADB,
    "confluent-dedicated": Flavor.MYSQL,
}
WITH_TOKENS = ("msk-serverless", "confluent-dedicated")
TARGETS = ("-80", "80-")


@pytest.mark.full
@pytest.mark.parametrize(
    "service",
    [
        "confluent-basic",
        "msk-serverless",
        "confluent-dedicated",
    ],
    indirect=True,
)
def test_nothing_is_lost_or_repeated_on_a_service(
    request: pytest.FixtureRequest,
    service: tuple[str, ManagedCluster],
    keyspace: str,
    tmp_path: Path,
    record_property: RecordProperty,
) -> None:
    """Start, copy, stream, a large row, kill, failover of the database; some while tokens end.

    A client takes a second more to open with them, which is why one goes without. Settings of
    topics that are refused are left out and named; nothing that is required is given up.
    """
    service_name, cluster = service
    start_server: StartServer = request.getfixturevalue(f"start_{FLAVORS[service_name]}")
    primary, replica = start_pair(start_server, PACKETS)
    name = primary.new_database()
    statements(primary, f"CREATE TABLE {name}.large (id INT PRIMARY KEY, v LONGTEXT)")
    load = Workload(primary, name)
    wait_same(replica, primary)
    looking = settings_of(primary, cluster, keyspace)
    has_tokens = service_name in WITH_TOKENS
    on_primary = replace(looking, kafka=with_tokens(cluster, tmp_path)) if has_tokens else looking
    provision_all(looking)
    listed = replace(
        on_primary, servers=(server_of(replica), server_of(primary)), max_replica_lag_ms=500
    )

    with load:
        with process(on_primary) as killed:
            killed.wait_line("streaming")
            start(looking, f"{name}.t")
            wait_state(looking, CopyState.COMPLETED, f"{name}.t")
            text = random.Random(1).randbytes(LARGE_BYTES[service_name] // 2).hex()
            statements(primary, f"INSERT INTO {name}.large VALUES (1, '{text}')")
            seen = load.committed
            wait_for("the load goes on", lambda: load.committed > seen + 50)
        running = RunningProducer(listed)
        wait_followed(looking, replica)
        replica.server.kill()
        wait_followed(looking, primary)
        if has_tokens:
            asked = runs(tmp_path)
            wait_for("tokens have ended", lambda: runs(tmp_path) >= asked + TOKENS_MIN)
    wait_caught_up(looking)
    running.end()

    log = read_log(on_primary)
    check_copied_log(log)
    check_changes_once(log)
    check_progress(log)
    for table in ("t", "large"):
        is_same = replay_upserts(log, name, table) == server_rows(primary, name, table, ["id"])
        assert is_same, table  # to print how such rows differ takes minutes
    [large] = (each for progress in log.progress for each in progress.in_parts)
    assert large.parts > 1
    check_topics(service_name, looking)
    steps = ["start", "copy", "stream", "kill", "failover", "large row"]
    steps += ["credentials"] * has_tokens
    measured(record_property, service_name, len(log.events), *steps)


@pytest.mark.full
@pytest.mark.parametrize(
    ("service", "databases"),
    [
        ("msk-serverless", (AZURE_MYSQL, AZURE_MYSQL, RDS_MYSQL)),
        ("confluent-basic", (RDS_MARIADB, RDS_MARIADB, RDS_MARIADB)),
        ("confluent-dedicated", (AURORA_MYSQL, AURORA_MYSQL, CLOUD_SQL)),
    ],
    indirect=["service"],
    ids=["azure-mysql", "rds-mariadb", "aurora-mysql"],
)
def test_a_shard_is_split_on_services(
    request: pytest.FixtureRequest,
    service: tuple[str, ManagedCluster],
    databases: tuple[Service, ...],
    keyspace: str,
    tmp_path: Path,
    record_property: RecordProperty,
) -> None:
    """Nothing is lost or repeated, with names that are proved on the source and on a target.

    RDS goes on with its statements where writes were stopped for the switch.
    """
    service_name, cluster = service
    source, *_ = databases
    start_server: StartServer = request.getfixturevalue(f"start_{source.flavor.value}")
    servers = {}
    with ExitStack() as stack:
        for shard, each, database in zip(
            ("-", *TARGETS), databases, start_server.together(3), strict=True
        ):
            make_service_tables(database, each)
            stack.enter_context(bookkeeping(database, each))
            servers[shard] = behind(stack.enter_context(served(database, each)), database)
        schema = fresh_schema()
        make_tables(servers["-"], schema)
        write_old_rows(servers["-"], schema)
        world = {"schema": schema, "servers": servers, "first": ("-",)}
        world["metadata"] = source.metadata
        played = stack.enter_context(flow(tmp_path, cluster, keyspace, **world))
        played.produce("-")
        with reading(played.client, keyspace) as reader:
            # Where commit times are seconds, nobody knows which side of a move came first.
            has_moves = source.flavor is Flavor.MYSQL
            application = Application(played, has_moves=has_moves)
            with at_work(application.writers):
                follow(played, "split", ("-",), TARGETS)
                switch_over(played, application, "split", TARGETS)
                complete(played, "split", ("-",), TARGETS)
            wait_read(played, reader)
        held = rows_of({shard: servers[shard] for shard in TARGETS}, schema)
        logs = {shard: played.log(shard) for shard in servers}

    check_order(reader.events, logs)
    assert replayed(reader.events) == held
    assert all(check_origins(served_part(logs["-"]), logs[s]) > 100 for s in TARGETS)
    for (shard, settings), each in zip(played.logs.items(), databases, strict=True):
        last = progress_of(settings)
        assert last is not None
        assert (last.passed is not None) == bool(each.bookkeeping), shard
        assert (last.proved is not None) == (source.metadata == "proved"), shard
    for profile in {service_name, *(each.profile for each in databases)}:
        measured(record_property, profile, len(reader.events), "reshard")
