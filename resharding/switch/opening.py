"""What a switch needs before it stops writes, and what targets get before their first write.

The latter are triggers and counters. Until the decision a target's rows come from the sources,
where the triggers have run already. Whether the target will accept them is tried before writes are
stopped: afterwards there is no way back. AUTO_INCREMENT and sequences are set above all values that
the sources have given out, because the highest ones may have been deleted there, or belong to
another target.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from pymysql.err import MySQLError

from databases.catalog import (
    SEQUENCE,
    CatalogTrigger,
    list_events,
    list_tables,
    list_triggers,
    next_counters,
)
from databases.connection import error_code, error_text, server_errors
from databases.errors import ServerRefused
from databases.internal_tables import INTERNAL_DATABASE, VERIFIED, create_internal_tables
from databases.sql import quoted, rows
from event_token import Flavor, StreamPosition
from event_token.errors import Halt, UsageError
from resharding.aside import (
    NAMED_MAX,
    AsidePlace,
    aside_keys,
    in_the_way,
    read_aside,
    was_set_aside_since,
)
from resharding.bookkeeping import read_checkpoints, read_verified
from resharding.definitions import (
    ReshardTable,
    SourceObject,
    definition_problems,
    missing_objects,
    object_problems,
    read_definitions,
    read_objects,
)
from resharding.progress import is_old
from resharding.servers import SESSION_MODE
from resharding.switch.shard_writes import ShardWrites, SwitchSettings
from topics.keyspace.topology import ReshardEntry
from topics.names import ShardTopics
from topics.progress.committed_tail import has_reached, last_progress
from topics.schemas import open_schema_ids
from topics.stream.target_marks import marks_at_end

Table = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Numbers:
    """A sequence: the next value that it has not given out, and how it continues."""

    next_value: int
    low: int
    high: int
    start: int
    increment: int
    cycles: bool


def counters_to_raise(
    sources: Sequence[Any], target: Any, databases: frozenset[str], flavor: Flavor
) -> list[str]:
    """The statements that set the target's counters above those of all sources."""
    found = [auto_increments(source, databases, flavor) for source in sources]
    here = auto_increments(target, databases, flavor)
    statements = [
        f"ALTER TABLE {_name(table)} AUTO_INCREMENT = {wanted}"
        for table, value in sorted(here.items())
        if (wanted := max(counters.get(table, 0) for counters in found)) > value
    ]
    if flavor is Flavor.MARIADB:
        given = [sequences(source, databases) for source in sources]
        for name, sequence in sorted(sequences(target, databases).items()):
            statements += sequence_statement(name, sequence, [g[name] for g in given if name in g])
    return statements


def auto_increments(connection: Any, databases: frozenset[str], flavor: Flavor) -> dict[Table, int]:
    """The next value of each table with an AUTO_INCREMENT column."""
    return next_counters(connection, databases, is_mysql=flavor is Flavor.MYSQL)


def sequences(connection: Any, databases: frozenset[str]) -> dict[Table, Numbers]:
    """The sequences of a MariaDB server."""
    names = [
        entry.name for entry in list_tables(connection, sorted(databases)) if entry.kind == SEQUENCE
    ]
    found = {}
    for database, name in names:
        [values] = rows(
            connection,
            "SELECT next_not_cached_value, minimum_value, maximum_value, start_value, increment, "
            f"cycle_option FROM {_name((database, name))}",
        )
        following, low, high, start, increment = map(int, values[:5])
        found[database, name] = Numbers(
            following, low, high, start, increment, cycles=bool(values[5])
        )
    return found


def sequence_statement(name: Table, here: Numbers, given: Sequence[Numbers]) -> list[str]:
    """The statement that sets a sequence behind those of the sources, in its own steps. Pure."""
    if not given or here.cycles:
        return []
    step = here.increment or 1
    furthest = (max if step > 0 else min)(sequence.next_value for sequence in given)
    wanted = here.start - (here.start - furthest) // step * step
    if (wanted - here.next_value) * step <= 0:
        return []
    if not here.low <= wanted <= here.high:
        raise Halt(
            f"sequence {'.'.join(name)} on the target ends at {here.high if step > 0 else here.low}"
            f", and the sources have given out all up to {furthest}: let it go on further (ALTER "
            f"SEQUENCE), then run switch again"
        )
    return [f"SELECT SETVAL({_name(name)}, {wanted}, 0)"]


def raise_counters(connection: Any, statements: Sequence[str]) -> None:
    """Execute the statements of `counters_to_raise`."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _name(table: Table) -> str:
    return ".".join(map(quoted, table))


_TRIAL: Final = f"{INTERNAL_DATABASE}.trigger_trial"
# ER_BINLOG_CREATE_ROUTINE_NEED_SUPER: the server cannot know that only rows are logged.
_NEEDS_SUPER: Final = 1419


def _triggers(writes: ShardWrites, databases: frozenset[str]) -> list[CatalogTrigger]:
    with server_errors(writes.server, "reading the triggers of"):
        return list_triggers(writes.connection, databases)


def missing_triggers(
    source: ShardWrites, target: ShardWrites, databases: frozenset[str]
) -> list[CatalogTrigger]:
    """The triggers that only the source has."""
    present = {(trigger.database, trigger.name) for trigger in _triggers(target, databases)}
    wanted = _triggers(source, databases)
    return [trigger for trigger in wanted if (trigger.database, trigger.name) not in present]


def trial_problems(target: ShardWrites, triggers: Iterable[CatalogTrigger]) -> list[str]:
    """The triggers that the target rejects: each is created on an empty copy of its table."""
    problems = []
    for trigger in triggers:
        try:
            with server_errors(target.server, "trying a trigger on"):
                _try(target.connection, trigger)
        except (MySQLError, ServerRefused) as error:
            problems.append(_cannot_create(target, trigger, error))
    return problems


def _trial(trigger: CatalogTrigger) -> str:
    """The statement that creates a trigger like this one on the trial table."""
    user, _, host = trigger.definer.rpartition("@")
    return (
        f"CREATE DEFINER = {quoted(user)}@{quoted(host)} TRIGGER {_TRIAL} "
        f"{trigger.timing} {trigger.event} ON {_TRIAL} FOR EACH ROW {trigger.body}"
    )


def _try(connection: Any, trigger: CatalogTrigger) -> None:
    original = f"{quoted(trigger.database)}.{quoted(trigger.table)}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {INTERNAL_DATABASE}")
        cursor.execute(f"DROP TABLE IF EXISTS {_TRIAL}")
        cursor.execute(f"CREATE TABLE {_TRIAL} LIKE {original}")
        try:
            with _sql_mode(cursor, trigger.sql_mode):
                cursor.execute(_trial(trigger))
        finally:
            cursor.execute(f"DROP TABLE {_TRIAL}")


def copy_triggers(source: ShardWrites, target: ShardWrites, databases: frozenset[str]) -> None:
    """Create the triggers on the target that only the source has. Halt when it rejects one."""
    for trigger in missing_triggers(source, target, databases):
        name = f"{quoted(trigger.database)}.{quoted(trigger.name)}"
        [row] = source.query(f"SHOW CREATE TRIGGER {name}")
        sql_mode, statement, charset, collation = row[1], str(row[2]), row[3], row[4]
        try:
            with (
                server_errors(target.server, "creating a trigger on"),
                target.connection.cursor() as cursor,
            ):
                cursor.execute(f"SET NAMES {charset} COLLATE {collation}")
                cursor.execute(f"USE {quoted(trigger.database)}")
                with _sql_mode(cursor, sql_mode):
                    cursor.execute(statement)
                cursor.execute("SET NAMES utf8mb4")
        except (MySQLError, ServerRefused) as error:
            problem = _cannot_create(target, trigger, error)
            raise Halt(f"{problem}. Writes are stopped: fix this and run switch again") from error


@contextmanager
def _sql_mode(cursor: Any, sql_mode: str) -> Iterator[None]:
    cursor.execute("SET SESSION sql_mode = %s", (sql_mode,))
    try:
        yield
    finally:
        cursor.execute("SET SESSION sql_mode = %s", (SESSION_MODE,))


def _cannot_create(target: ShardWrites, trigger: CatalogTrigger, error: Exception) -> str:
    text = error_text(error) if isinstance(error, MySQLError) else str(error)
    fix = ""
    if isinstance(error, MySQLError) and error_code(error) == _NEEDS_SUPER:
        fix = ": SET GLOBAL log_bin_trust_function_creators = ON there, or grant SUPER"
    return (
        f"{target.server.name}: trigger {trigger.database}.{trigger.name} cannot be created: "
        f"{text}{fix}"
    )


@dataclass(frozen=True, slots=True)
class SourceSchema:
    """What the sharded databases of a source hold now."""

    name: str
    tables: list[ReshardTable]
    objects: list[SourceObject]


def read_schema(source: ShardWrites, databases: frozenset[str]) -> SourceSchema:
    """Look at the sharded databases of a source."""
    with server_errors(source.server, "looking at the objects of"):
        tables = read_definitions(source.connection, databases)
        return SourceSchema(source.server.name, tables, read_objects(source.connection, databases))


def opening_problems(
    sources: Sequence[ShardWrites],
    schemas: Sequence[SourceSchema],
    target: ShardWrites,
    databases: frozenset[str],
) -> list[str]:
    """What would be missing on the target, or be rejected by it, once it is open."""
    problems = trial_problems(target, missing_triggers(sources[0], target, databases))
    with server_errors(target.server, "looking at the objects of"):
        there = read_objects(target.connection, databases)
    for schema in schemas:
        problems += [
            f"{target.server.name}: {each.full_name} is on {schema.name} alone: create it "
            f"(`reshard create` printed the statement), or drop it on the source"
            for each in missing_objects(schema.objects, there)
        ]
    try:
        _counters(sources, target, databases)
    except Halt as error:
        problems.append(f"{target.server.name}: {error}")
    return list(dict.fromkeys(problems))


def table_problems(
    schemas: Sequence[SourceSchema], target: ShardWrites, databases: frozenset[str]
) -> list[str]:
    """How the target's tables differ from those of the sources: some DDL reached one side alone."""
    where = target.server.name
    with server_errors(target.server, "looking at the tables of"):
        there = read_definitions(target.connection, databases)
    problems = []
    for schema in schemas:
        problems += definition_problems(there, schema.tables, where)
        names = {table.name for table in there}
        problems += [
            f"{where}: table {table.name} is on {schema.name} alone: create it, or drop it there"
            for table in schema.tables
            if table.name not in names
        ]
    return list(dict.fromkeys(problems))


def is_prepared(
    sources: Sequence[ShardWrites], target: ShardWrites, databases: frozenset[str]
) -> bool:
    """Whether the target has the triggers and counters with which it can be opened."""
    return not (
        missing_triggers(sources[0], target, databases) or _counters(sources, target, databases)
    )


def prepare(sources: Sequence[ShardWrites], target: ShardWrites, databases: frozenset[str]) -> None:
    """Create the triggers of the first source, and raise the counters above those of all."""
    copy_triggers(sources[0], target, databases)
    statements = _counters(sources, target, databases)
    with server_errors(target.server, "setting the counters of"):
        raise_counters(target.connection, statements)


def _counters(
    sources: Sequence[ShardWrites], target: ShardWrites, databases: frozenset[str]
) -> list[str]:
    with server_errors(target.server, "comparing the counters of"):
        return counters_to_raise(
            [source.connection for source in sources],
            target.connection,
            databases,
            target.server.flavor,
        )


# Producers and appliers that need longer to catch up would prolong the write stop.
READY_S_MAX: Final = 5.0
READY_POLL_S: Final = 0.1


def check_ready(
    settings: SwitchSettings,
    entry: ReshardEntry,
    writes: Mapping[str, ShardWrites],
    databases: frozenset[str],
    *,
    has_stopped: bool,
) -> None:
    """Raise one UsageError that lists everything that prevents a switch now.

    `has_stopped`: an earlier run has begun to stop writes.
    """
    problems: list[str] = []
    for shard in (*entry.sources, *entry.targets):
        try:
            writes[shard].is_locked()
        except UsageError as error:
            problems.append(str(error))
    if not settings.force:
        for target in entry.targets:
            problems += _verify_problems(settings, writes[target], has_stopped=has_stopped)
    for source in entry.sources:
        problems += writes[source].obstacles()
    for shard in (*entry.sources, *entry.targets):
        problems += _event_problems(writes[shard], databases)
    sources = [writes[source] for source in sorted(entry.sources)]
    schemas = [read_schema(source, databases) for source in sources]
    problems += object_problems({schema.name: schema.objects for schema in schemas})
    for target in entry.targets:
        if not settings.force:
            problems += table_problems(schemas, writes[target], databases)
        problems += opening_problems(sources, schemas, writes[target], databases)
    problems += _lag_problems(settings, entry, writes, databases)
    for target in entry.targets:
        problems += _aside_problems(settings, writes[target])
    if problems:
        text = "\n".join(f"  {problem}" for problem in problems)
        what = f"reshard {settings.reshard_id} is not ready to switch:\n{text}"
        if has_stopped:
            what += "\nWrites are stopped: fix this and run switch again, or cancel"
        raise UsageError(what)


def _verify_problems(
    settings: SwitchSettings, target: ShardWrites, *, has_stopped: bool
) -> list[str]:
    """Why a target's last comparison does not count. Its age is no matter to a resumed switch."""
    name = target.server.name
    with server_errors(target.server, "reading the result of verify on"):
        create_internal_tables(target.connection, (VERIFIED,))
        found = read_verified(target.connection, settings.reshard_id)
        checkpoints = read_checkpoints(target.connection, settings.reshard_id)
        is_passed = found is not None and was_set_aside_since(
            target.connection, settings.reshard_id, found
        )
    if found is None:
        return [f"{name}: not verified: run shardstream reshard verify, or --force"]
    if found.differing:
        return [f"{name}: verify found {found.differing} rows that differ"]
    if is_old(found) and not has_stopped:
        hours = round((time.time() - found.at_us / 1e6) / 3600)
        return [f"{name}: verify is {hours} hours old: run shardstream reshard verify again"]
    if is_passed and not has_stopped:
        why = "rows were set aside since verify compared"
        return [f"{name}: {why}: run shardstream reshard verify again, or --force"]
    verified = StreamPosition.from_string(found.position).shards
    if any(
        source not in checkpoints or checkpoints[source].seq < at.seq
        for source, at in verified.items()
    ):
        return [f"{name}: it is behind the position that verify compared: verify again"]
    return []


def _aside_problems(settings: SwitchSettings, target: ShardWrites) -> list[str]:
    """Rows that stay aside although the applier goes on: after the switch they would be missing."""
    deadline_s = time.monotonic() + READY_S_MAX
    staying: set[tuple[AsidePlace, bytes]] | None = None
    while True:
        with server_errors(target.server, "reading what is set aside on"):
            found = aside_keys(target.connection, settings.reshard_id) or {}
        now = {(place, digest) for place, digests in found.items() for digest in digests}
        staying = now if staying is None else now & staying
        if not staying:
            return []
        if time.monotonic() > deadline_s:
            return aside_problems(target, settings.reshard_id)
        time.sleep(READY_POLL_S)


def aside_problems(target: ShardWrites, reshard_id: str) -> list[str]:
    """What keeps rows aside on a target, a line for each of the first ones."""
    with server_errors(target.server, "looking for what keeps rows aside on"):
        waiting = list(islice(read_aside(target.connection, reshard_id), NAMED_MAX))
        return [
            f"{target.server.name}: a row is set aside, because a row of another source is in its "
            f"way: {said}"
            for said in in_the_way(target.connection, waiting)
        ]


def _event_problems(shard: ShardWrites, databases: frozenset[str]) -> list[str]:
    with server_errors(shard.server, "reading the events of"):
        found = list_events(shard.connection, databases)
    return [
        f"{shard.server.name}: event {schema}.{name} would write during the switch: disable it "
        f"(ALTER EVENT ... DISABLE), and create it on the targets after the switch"
        for schema, name, is_enabled in found
        if is_enabled
    ]


def _lag_problems(
    settings: SwitchSettings,
    entry: ReshardEntry,
    writes: Mapping[str, ShardWrites],
    databases: frozenset[str],
) -> list[str]:
    """Wait until logs have what their servers have executed by now, and targets have the logs."""
    deadline_s = time.monotonic() + READY_S_MAX
    schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
    executed = {shard: writes[shard].executed() for shard in (*entry.sources, *entry.targets)}
    seqs: dict[str, int] = {}
    while True:
        problems = []
        for shard, wanted in executed.items():
            topics = ShardTopics(settings.keyspace, shard)
            progress = last_progress(settings.kafka, topics, schema_ids)
            if progress is None or not has_reached(progress, wanted):
                problems.append(
                    f"the log of shard {shard} is behind {writes[shard].server.name}: check its "
                    f"producer"
                )
            elif shard in entry.sources and shard not in seqs:
                marks = marks_at_end(settings.kafka, topics, schema_ids, databases.__contains__)
                mark = marks.get(settings.reshard_id)
                # Appliers stop at END; databases that are not sharded may be written after it.
                seqs[shard] = progress.last_seq if mark is None else mark.seq
        problems += _behind(settings, entry, writes, seqs)
        if not problems or time.monotonic() > deadline_s:
            return problems
        time.sleep(READY_POLL_S)


def _behind(
    settings: SwitchSettings,
    entry: ReshardEntry,
    writes: Mapping[str, ShardWrites],
    seqs: Mapping[str, int],
) -> list[str]:
    problems = []
    for target in entry.targets:
        server = writes[target].server
        with server_errors(server, "reading the checkpoint of"):
            found = read_checkpoints(writes[target].connection, settings.reshard_id)
        for source, seq in seqs.items():
            at = found[source].seq if source in found else None
            if at is None or at < seq:
                problems.append(
                    f"{server.name} lags: it has seq {at} of shard {source}, whose log was at "
                    f"{seq} {READY_S_MAX:g} s ago: check its applier"
                )
    return problems
