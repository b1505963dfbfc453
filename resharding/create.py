"""Creates a reshard: checks everything before it changes anything.

The topology's entry is written last, so it means that the targets are ready; after a crash before
that, the same command completes the work.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pymysql

from databases.connection import error_text, server_errors
from databases.errors import ServerLost, ServerRefused
from databases.internal_tables import INTERNAL_DATABASE, create_internal_tables
from databases.sql import quoted
from event_token import KeyRange, ShardName, StreamPosition, tiles
from event_token.errors import Retry, UsageError
from resharding.bookkeeping import (
    ReshardPlan,
    keyspaces_with,
    range_of,
    read_plan,
    reshards_on,
    write_plan,
    write_roles,
)
from resharding.definitions import (
    ReshardTable,
    SourceObject,
    counter_problems,
    databases_statement,
    merged_objects,
    object_problems,
    read_definitions,
    read_objects,
    source_problems,
    target_problems,
)
from resharding.routing import Routes
from resharding.servers import ReshardServer, missing_grants, open_session
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_shard
from topics.kafka.topic_settings import TopicSettings
from topics.keyspace.topology import (
    ReshardEntry,
    ReshardState,
    ShardEntry,
    ShardState,
    Topology,
    read_topology,
    require_topology,
    update_topology,
)
from topics.names import ShardTopics
from topics.progress.copy_topic import CopyAction, CopyRequest, ask_and_wait
from topics.schemas import open_schema_ids
from topics.start.positions import resolve_start_of
from topics.start.start_forms import StartWord


def other_keyspaces(request: "CreateRequest", where: str, connection: Any) -> list[str]:
    """Reshards of other keyspaces on the same server that have this id, as their tables do."""
    return [
        f"{where}: keyspace {keyspace} has a reshard {request.reshard_id} there, too: take another "
        f"id"
        for keyspace in sorted(keyspaces_with(connection, request.reshard_id) - {request.keyspace})
    ]


def leftovers(reshard_id: str, topology: Topology, where: str, connection: Any) -> list[str]:
    """What other reshards have left on a target, each with the way to get rid of it."""
    states = {entry.reshard_id: entry.state for entry in topology.reshards}
    problems = []
    for name in reshards_on(connection):
        plan = read_plan(connection, name, where)
        keyspace = topology.keyspace if plan is None else plan.keyspace
        if keyspace != topology.keyspace:
            problems.append(
                f"{where}: it is a target of reshard {name} of keyspace {keyspace}: end that one "
                f"(shardstream reshard status {keyspace} says how), or take another server"
            )
            continue
        # One with the same id was left by a crash: the topology gets it only at the end.
        if name == reshard_id:
            continue
        state = states.get(name)
        if state == ReshardState.RUNNING.value:
            how = f"finish it or cancel it (shardstream reshard cancel {topology.keyspace} {name})"
        elif state == ReshardState.SWITCHED.value:
            how = f"run shardstream reshard complete {topology.keyspace} {name}"
        else:
            databases = sorted(topology.sharded_databases)
            drops = " ".join(
                f"DROP DATABASE IF EXISTS {quoted(d)};" for d in (*databases, INTERNAL_DATABASE)
            )
            how = f"stop its applier and producer, if they still run, and empty the server: {drops}"
        problems.append(
            f"{where}: it is a target of reshard {name}, which is "
            f"{state or 'not in the topology of this keyspace'}: {how}"
        )
    return problems


RESHARD_ID_CHARS_MAX: Final = 64
# A producer polls for requests ten times a second; a reconnect takes some seconds.
COPY_ANSWER_S_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """The reshard to create. `servers`: of all sources and targets.

    `from_log`: the logs hold all rows of the tables, so no copy (snapshot) is needed.
    `accept_auto_increment`: the servers give different values on each shard. `reason`: why, for the
    records of topology and copies.
    """

    reshard_id: str
    keyspace: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    servers: Mapping[str, ReshardServer]
    kafka: ClientConfig
    registry_url: str | None = None
    topic_settings: TopicSettings = field(default_factory=TopicSettings)
    from_log: bool = False
    accept_auto_increment: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Creation:
    """A reshard that was created, and every object of its sources with what becomes of it."""

    plan: ReshardPlan
    objects: tuple[SourceObject, ...]


def create_reshard(request: CreateRequest) -> Creation:
    """Check everything, create the tables on the targets, and add the reshard to the topology.

    One UsageError lists everything that is wrong; nothing was changed then.
    """
    topology = require_topology(read_topology(request.kafka, request.keyspace), request.keyspace)
    _refuse(request, shard_problems(topology, request))
    routes = Routes(topology.vindexes)
    with ExitStack() as stack:
        connections = _connect(request, stack)
        # Read before the tables: a definition that changes afterwards stops the applier.
        latest = _position(request, StartWord.LATEST)
        objects = _read_objects(request, routes, connections)
        wanted = _check_tables(request, routes, connections, object_problems(objects), topology)
        plan = _plan(request, topology, latest)
        # Everything up to here only reads.
        for shard in request.targets:
            _make_tables(request.servers[shard], connections, request.sources[0], shard, wanted)
            provision_shard(
                request.kafka, ShardTopics(request.keyspace, shard), request.topic_settings
            )
        for shard, connection in connections.items():
            with server_errors(request.servers[shard], "writing the reshard's roles on"):
                create_internal_tables(connection)
                write_roles(connection, plan)
        for shard in request.targets:
            with server_errors(request.servers[shard], "writing the reshard's plan on"):
                write_plan(connections[shard], plan)
    update_topology(
        request.kafka, request.keyspace, lambda now: _with_reshard(now, request), request.reason
    )
    if not request.from_log:
        _ask_for_copies(plan, request.kafka, request.reason)
    return Creation(plan, tuple(merged_objects(objects.values())))


def _ask_for_copies(plan: ReshardPlan, kafka: ClientConfig, reason: str = "") -> None:
    """Ask the sources' producers to copy the tables into their logs, for the appliers."""
    tables = tuple(f"{table.database}.{table.table}" for table in plan.tables)
    problems = []
    for source in plan.sources:
        request = CopyRequest(CopyAction.START, tables, reason=reason)
        try:
            answer = ask_and_wait(
                kafka, ShardTopics(plan.keyspace, source), request, COPY_ANSWER_S_MAX
            )
        except Retry as error:
            problems.append(str(error))
            continue
        problems += [f"shard {source}: {problem}" for problem in answer.problems]
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        shards = " ".join(f"--shard={source}" for source in plan.sources)
        raise UsageError(
            f"reshard {plan.reshard_id} is created, but its tables are not being copied:\n{lines}\n"
            f"Fix that, then start the copy: shardstream copy start {plan.keyspace} {shards}"
        )


def shard_problems(topology: Topology, request: CreateRequest) -> list[str]:
    """What is wrong with these sources and targets in this topology. Pure."""
    problems = []
    name = request.reshard_id
    if not (0 < len(name) <= RESHARD_ID_CHARS_MAX and name.replace("-", "").isalnum()):
        problems.append(
            f"reshard id {name!r} is not 1 to {RESHARD_ID_CHARS_MAX} letters, digits and dashes"
        )
    if any(entry.reshard_id == name for entry in topology.reshards):
        problems.append(f"reshard id {name}: there was one with this id; choose another")
    states = {shard.name: shard.state for shard in topology.shards}
    for shard in request.sources:
        if states.get(shard) is not ShardState.SERVING:
            serving = ", ".join(s.name for s in topology.serving())
            problems.append(f"source {shard} is not a serving shard; these are: {serving}")
        problems += [
            f"source {shard} is being resharded by {entry.reshard_id}: first switch that one, or "
            f"run shardstream reshard cancel {request.keyspace} {entry.reshard_id}"
            for entry in topology.reshards
            if shard in entry.sources and entry.state == ReshardState.RUNNING.value
        ]
    problems += [
        f"target {shard} has been a shard: a name is used once, take {_next_name(shard)}"
        for shard in request.targets
        if shard in states
    ]
    problems += _range_problems(request.sources, request.targets)
    if not topology.vindexes:
        problems.append("no table has a vindex: declare them in the settings")
    flavors = {request.servers[s].flavor for s in (*request.sources, *request.targets)}
    if len(flavors) > 1:
        problems.append("sources and targets are of different server families")
    return problems


def _range_problems(sources: Sequence[str], targets: Sequence[str]) -> list[str]:
    if not sources or not targets:
        return ["a reshard has at least one source and one target"]
    try:
        source_ranges = [ShardName.parse(shard).key_range for shard in sources]
        target_ranges = [ShardName.parse(shard).key_range for shard in targets]
        whole = range_of(sources)
    except UsageError as error:
        return [str(error)]
    if not tiles(source_ranges, whole):
        return [f"the sources {', '.join(sources)} are not one range without gap"]
    if not tiles(target_ranges, whole):
        named = ", ".join(targets)
        return [f"the targets {named} do not cover the range {whole} once: a gap or an overlap"]
    return []


def _next_name(shard: str) -> str:
    name = ShardName.parse(shard)
    return str(ShardName(name.key_range, name.generation + 1))


def _refuse(request: CreateRequest, problems: Sequence[str]) -> None:
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise UsageError(
            f"reshard {request.reshard_id} of {request.keyspace}: {len(problems)} problem(s); "
            f"nothing was changed\n{lines}"
        )


def _connect(request: CreateRequest, stack: ExitStack) -> dict[str, Any]:
    """Connect to every server and check the account's privileges."""
    problems: list[str] = []
    connections: dict[str, Any] = {}
    for shard in (*request.sources, *request.targets):
        server = request.servers[shard]
        try:
            connection = connections[shard] = open_session(server)
            stack.callback(connection.close)
            with server_errors(server, "looking at"):
                problems += missing_grants(connection, server.name)
        except (ServerLost, ServerRefused) as error:
            problems.append(str(error))
    addresses = [(s.host, s.port) for s in map(request.servers.__getitem__, connections)]
    if len(set(addresses)) < len(addresses):
        problems.append("two shards are on the same server: each needs its own")
    _refuse(request, problems)
    return connections


def _read_objects(
    request: CreateRequest, routes: Routes, connections: Mapping[str, Any]
) -> dict[str, list[SourceObject]]:
    """All objects of each source, by the name of its server."""
    found = {}
    for shard in request.sources:
        server = request.servers[shard]
        with server_errors(server, "looking at the objects of"):
            found[server.name] = read_objects(connections[shard], routes.databases)
    return found


def _check_tables(
    request: CreateRequest,
    routes: Routes,
    connections: Mapping[str, Any],
    problems: list[str],
    topology: Topology,
) -> list[ReshardTable]:
    """The tables of the sources, after checking that all servers agree.

    `problems`: those found so far, to be reported together.
    """
    found = {}
    for shard, connection in connections.items():
        with server_errors(request.servers[shard], "looking at the tables of"):
            found[shard] = read_definitions(connection, routes.databases)
            where = request.servers[shard].name
            problems += other_keyspaces(request, where, connection)
            if shard in request.targets:
                problems += leftovers(request.reshard_id, topology, where, connection)
    wanted = found[request.sources[0]]
    for shard in request.sources:
        problems += source_problems(found[shard], routes, request.servers[shard].name)
        if not (request.accept_auto_increment or _makes_one_shard(request)):
            problems += counter_problems(found[shard], routes, request.servers[shard].name)
    for shard in (*request.sources[1:], *request.targets):
        where = request.servers[shard].name
        problems += [
            problem
            for problem in target_problems(found[shard], wanted, where)
            if shard in request.targets or "is not defined" in problem
        ]
    _refuse(request, problems)
    return wanted


def _makes_one_shard(request: CreateRequest) -> bool:
    return len(request.targets) == 1 and range_of(request.targets) == KeyRange(b"", b"")


def _plan(
    request: CreateRequest,
    topology: Topology,
    latest: StreamPosition,
) -> ReshardPlan:
    """The plan; targets start at the ends of the logs, where the copy starts too."""
    start = _position(request, StartWord.EARLIEST) if request.from_log else latest
    problems = [
        f"{request.servers[shard].name}: the log of shard {shard} has lost its beginning"
        for shard in request.sources
        if request.from_log and start.shards[shard].seq != 0
    ]
    _refuse(request, problems)
    return ReshardPlan(
        reshard_id=request.reshard_id,
        keyspace=request.keyspace,
        sources=request.sources,
        targets=request.targets,
        tables=topology.vindexes,
        start=start.to_string(),
        agreed_seqs={shard: at.seq for shard, at in latest.shards.items()},
    )


def _position(request: CreateRequest, start: StartWord) -> StreamPosition:
    return resolve_start_of(
        start,
        config=request.kafka,
        keyspace=request.keyspace,
        shards=request.sources,
        schema_ids=open_schema_ids(request.kafka, request.registry_url),
    )


def _make_tables(
    server: ReshardServer,
    connections: Mapping[str, Any],
    source: str,
    target: str,
    wanted: Sequence[ReshardTable],
) -> None:
    """Create the databases and tables that a target lacks, without triggers."""
    try:
        with server_errors(server, "creating tables on"), connections[target].cursor() as cursor:
            # Created in the order of their names: a foreign key may refer to a later table.
            cursor.execute("SET SESSION foreign_key_checks = 0")
            cursor.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION'")
            for database in sorted({table.database for table in wanted}):
                cursor.execute(databases_statement(connections[source], database))
            for table in wanted:
                cursor.execute(f"USE {quoted(table.database)}")
                statement = table.compared.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1)
                cursor.execute(statement)
            found = read_definitions(connections[target], {t.database for t in wanted})
    except pymysql.err.MySQLError as error:
        raise UsageError(
            f"{server.name}: a table cannot be created: {error_text(error)}"
        ) from error
    problems = target_problems(found, wanted, server.name)
    if problems:
        raise UsageError(
            "tables were created, but differ from those of the source:\n"
            + "\n".join(f"  {problem}" for problem in problems)
        )


def _with_reshard(now: Topology | None, request: CreateRequest) -> Topology:
    """The topology with the reshard and its targets; checked again, since others may write it."""
    if now is None:
        raise UsageError(f"keyspace {request.keyspace} has lost its topology")
    _refuse(request, shard_problems(now, request))
    entry = ReshardEntry(
        request.reshard_id, request.sources, request.targets, ReshardState.RUNNING.value
    )
    return replace(
        now,
        shards=(*now.shards, *(ShardEntry(t, ShardState.TARGET) for t in request.targets)),
        reshards=(*now.reshards, entry),
    )
