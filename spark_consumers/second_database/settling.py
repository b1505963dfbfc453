"""Settles keys that have several homes, or changes that must be compared with stored ones.

They are few. All versions of such a key (the visible row, hidden rows and tombstones, and the
changes) are put into one work table and numbered; `applying.settle` decides over their order, and
the rows are then moved by number, so that no value passes through Python.
"""

from collections import defaultdict
from collections.abc import Iterable

from sqlalchemy import Connection, bindparam, text

from spark_consumers.applying.changes import (
    ABSENT,
    DELETED,
    HOME,
    KEY,
    SEQ,
    SHARD,
    TIME,
    TOKEN,
)
from spark_consumers.applying.homes import Version
from spark_consumers.applying.settle import settle
from spark_consumers.errors import CannotApply
from spark_consumers.second_database.checks.taken_rows import TakenRows
from spark_consumers.second_database.dialect import Dialect, rows_of, run
from spark_consumers.second_database.names import (
    CONTESTED,
    KEPT,
    NUMBER,
    ORIGIN,
    STORED,
    TargetTable,
)
from spark_consumers.second_database.staging import Staged

# `_contested` of rows that are settled already.
SETTLED = 2
# Numbers in one statement: databases limit its parameters (SQLite: 32,766).
NUMBERS_MAX = 10_000
_READ = (KEY, HOME, SHARD, SEQ, TIME, DELETED, TOKEN)


def settle_contested(
    connection: Connection,
    dialect: Dialect,
    table: TargetTable,
    stages: Iterable[Staged],
    *,
    soft: bool,
) -> bool:
    """Settle the contested rows of staging tables and mark them as settled; False: none are.

    All tasks' rows together: values of unique indexes move between keys of different tasks.
    """
    d = dialect
    contested = [staged for staged in stages if _is_contested(connection, d, staged)]
    if not contested:
        return False
    for staged in contested:
        stage = d.internal(str(staged.stage))
        _mark_whole_keys(connection, d, stage)
        _check_whole(connection, d, staged, stage)
    work = d.create_work(connection, table)
    for staged in contested:
        _collect(connection, d, table, staged, work, soft=soft)
    visible, others = _decide(
        rows_of(connection, f"SELECT {d.listed((NUMBER, *_READ, ORIGIN))} FROM {work}")
    )
    taken = TakenRows(connection, d, table, soft=False)
    place, homes = d.table(table.schema, table.name), d.internal(table.homes)
    for target, key in ((place, table.key), (homes, [KEY])):
        d.delete_matching(connection, target, f"{work} w", d.same_key("w", "t", key))
    taken.check_deleted(work, "1 = 1")
    stored = KEPT if soft else STORED
    for target, numbers, columns in (
        (place, visible, (*table.columns, *stored)),
        (homes, others, (KEY, *KEPT, *table.columns)),
    ):
        listed = d.listed(columns)
        insert = f"INSERT INTO {target} ({listed}) SELECT {listed} FROM {work}"
        if _move(connection, insert, numbers) < len(numbers) and taken.are_doubtful:
            raise taken.refusal("rows of several shards")
    d.drop_work(connection, work)
    flag = d.quote(CONTESTED)
    for staged in contested:
        stage = d.internal(str(staged.stage))
        run(connection, f"UPDATE {stage} SET {flag} = {SETTLED} WHERE {flag} = 1")
    return True


def _is_contested(connection: Connection, d: Dialect, staged: Staged) -> bool:
    stage = d.internal(str(staged.stage))
    mine = f"SELECT 1 FROM {stage} WHERE {d.quote(CONTESTED)} = 1 LIMIT 1"
    return bool(rows_of(connection, mine))


def _mark_whole_keys(connection: Connection, d: Dialect, stage: str) -> None:
    """All changes of a key are settled together."""
    keys = [
        key
        for (key,) in rows_of(
            connection,
            f"SELECT DISTINCT {d.quote(KEY)} FROM {stage} WHERE {d.quote(CONTESTED)} = 1",
        )
    ]
    statement = text(
        f"UPDATE {stage} SET {d.quote(CONTESTED)} = 1 WHERE {d.quote(CONTESTED)} = 0 "
        f"AND {d.quote(KEY)} IN :keys"
    ).bindparams(bindparam("keys", expanding=True))
    for begin in range(0, len(keys), NUMBERS_MAX):
        connection.execute(statement, {"keys": keys[begin : begin + NUMBERS_MAX]})


def _check_whole(connection: Connection, d: Dialect, staged: Staged, stage: str) -> None:
    if not staged.partial:
        return
    partial = rows_of(
        connection,
        f"SELECT {d.listed((KEY, SHARD, SEQ))} FROM {stage} WHERE {d.quote(CONTESTED)} = 1 "
        f"AND {d.quote(ABSENT)} IS NOT NULL LIMIT 1",
    )
    if partial:
        key, shard, seq = partial[0]
        raise CannotApply(
            f"{staged.database}.{staged.table}, key {key}, shard {shard}, seq {seq}: the row image "
            f"has only part of its columns, and the key has rows of several shards or was changed "
            f"late, so its rows cannot be told apart. Set binlog_row_image=FULL and start a new "
            f"target from a copy taken after that"
        )


def _collect(
    connection: Connection, d: Dialect, table: TargetTable, staged: Staged, work: str, *, soft: bool
) -> None:
    """Put the stored versions (origin 0) and the changes (origin 1) of the keys into `work`."""
    place, homes = d.table(table.schema, table.name), d.internal(table.homes)
    stage = d.internal(str(staged.stage))
    mine = f"s.{d.quote(CONTESTED)} = 1"
    # The keys as JSON text, each once with the columns of the key.
    keys = f"(SELECT DISTINCT {d.listed((KEY, *table.key), 's.')} FROM {stage} s WHERE {mine}) k"
    own = [*STORED, *table.columns]
    alive = f" WHERE t.{d.quote(DELETED)} = FALSE" if soft else ""
    run(
        connection,
        f"INSERT INTO {work} ({d.listed((ORIGIN, KEY, DELETED, *own))}) "
        f"SELECT 0, k.{d.quote(KEY)}, FALSE, {d.listed(own, 't.')} FROM {place} t JOIN {keys} "
        f"ON {d.same_key('t', 'k', table.key)}{alive}",
    )
    every = [KEY, *KEPT, *table.columns]
    run(
        connection,
        f"INSERT INTO {work} ({d.listed((ORIGIN, *every))}) SELECT 0, "
        f"{d.listed(every, 'h.')} FROM {homes} h "
        f"WHERE EXISTS (SELECT 1 FROM {stage} s WHERE {mine} "
        f"AND s.{d.quote(KEY)} = h.{d.quote(KEY)})",
    )
    staged_too = [KEY, *KEPT, *staged.columns]
    run(
        connection,
        f"INSERT INTO {work} ({d.listed((ORIGIN, *staged_too))}) SELECT 1, "
        f"{d.listed(staged_too, 's.')} FROM {stage} s WHERE {mine}",
    )


def _decide(rows: Iterable[tuple[object, ...]]) -> tuple[list[int], list[int]]:
    """Return the numbers of the visible rows, and of hidden rows and tombstones."""
    stored: defaultdict[object, list[Version]] = defaultdict(list)
    changes: defaultdict[object, list[Version]] = defaultdict(list)
    numbers: dict[tuple[object, ...], int] = {}
    for number, key, home, shard, seq, time_us, deleted, token, origin in rows:
        at_home = None if home is None else bytes(home)  # type: ignore[call-overload]
        version = Version(
            *(str(shard), int(seq), int(time_us), at_home),  # type: ignore[call-overload]
            None if deleted else number,
            None if token is None else str(token),
        )
        (changes if origin else stored)[key].append(version)
        if deleted:
            numbers[key, version] = int(number)  # type: ignore[call-overload]
    visible, others = [], []
    for key, asked in changes.items():
        settled = settle(stored.get(key, ()), asked)
        if settled.visible is not None:
            visible.append(settled.visible.row)
        others += [
            numbers[key, version] if version.row is None else version.row
            for version in settled.others
        ]
    return [int(str(n)) for n in visible], [int(str(n)) for n in others]


def _move(connection: Connection, insert: str, numbers: list[int]) -> int:
    """Run an INSERT ... SELECT for the rows of these numbers; return how many it inserted."""
    statement = text(f"{insert} WHERE {NUMBER} IN :numbers").bindparams(
        bindparam("numbers", expanding=True)
    )
    done = 0
    for begin in range(0, len(numbers), NUMBERS_MAX):
        some = {"numbers": numbers[begin : begin + NUMBERS_MAX]}
        done += int(connection.execute(statement, some).rowcount)
    return done
