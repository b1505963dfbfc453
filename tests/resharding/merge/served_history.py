"""A history as a merged stream of records, and a real target to which an applier takes it."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from databases.internal_tables import create_internal_tables
from databases.sql import rows
from event_token import ShardPosition, StreamPosition
from resharding.apply import applier
from resharding.apply.applier import ApplierSettings, run_applier
from resharding.aside import read_aside
from resharding.bookkeeping import ReshardPlan, read_checkpoints, write_plan
from resharding.servers import open_session
from tests.database_servers import DatabaseFixture
from tests.resharding.accounts import resharder_of
from tests.resharding.apply.records import event
from tests.resharding.merge.histories import Commit, History, Image, ModelRow
from tests.resharding.shards import fresh_schema
from tests.resharding.writers import shard_of
from topics.kafka.client import ClientConfig
from topics.keyspace.topology import TableVindex
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import EventType, Op, Row, TokenText, VEvent

SHARDS: Final = {2: ("-80", "80-"), 3: ("-40", "40-c0", "c0-")}
UUID: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
TARGET: Final = "-"
NO_KAFKA: Final = ClientConfig({"bootstrap.servers": "none:9"})


class KilledError(Exception):
    """The applier ends in the midst of what it does."""


@dataclass(frozen=True)
class TableKind:
    """A table whose unique values the server compares in a way of its own.

    `row_of`: how the model's id and unique value are written in a version of a row.
    """

    definition: str
    columns: tuple[Column, ...]
    row_of: Callable[[ModelRow], dict[str, Any]]


ID = Column("id", ValueKind.LONG, "bigint")
USER = Column("user_id", ValueKind.LONG, "bigint")
N = Column("n", ValueKind.LONG, "int")
NAME = Column("id", ValueKind.STRING, "varchar(9)")
NUMBER = Column("uid", ValueKind.LONG, "int")
CODE = Column("uid", ValueKind.STRING, "varchar(9)")

PLAIN = TableKind(
    "id BIGINT PRIMARY KEY, user_id BIGINT NOT NULL, uid INT NOT NULL UNIQUE, n INT NOT NULL",
    (ID, USER, NUMBER, N),
    lambda row: {"id": row.id, "uid": row.uid},
)
# Of text the server takes other values for the same, and of a prefix it compares no more.
LOOSE = TableKind(
    "id VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY, "
    "user_id BIGINT NOT NULL, uid VARCHAR(9) NOT NULL, n INT NOT NULL, UNIQUE (uid(1))",
    (NAME, USER, CODE, N),
    lambda row: {"id": "aA"[row.n % 2] + str(row.id), "uid": f"{row.uid}{row.n % 7}"},
)
COMPUTED = TableKind(
    "id BIGINT PRIMARY KEY, user_id BIGINT NOT NULL, uid INT NOT NULL, n INT NOT NULL, "
    "UNIQUE ((uid MOD 10))",
    (ID, USER, NUMBER, N),
    lambda row: {"id": row.id, "uid": row.uid + row.n % 7 * 10},
)


def users_of(shards: Sequence[str]) -> list[list[int]]:
    """Two users of each source: a row's source follows from its user."""
    found: dict[str, list[int]] = {shard: [] for shard in shards}
    for user in range(100):
        found[shard_of(user, shards)].append(user)
    return [users[:2] for users in found.values()]


class Position:
    """Where a record of the stream is."""

    def __init__(self, position: StreamPosition) -> None:
        self._position = position

    def position_after(self, _count: int) -> StreamPosition:
        return self._position


class ServedHistory:
    """The records of a history in merged order, as `MergedStream` delivers them.

    `killed_at`: the read at which the applier is killed. The end of the history ends the applier.
    """

    def __init__(
        self, records: list[VEvent], sizes: Sequence[int], start: StreamPosition, stop: Any
    ) -> None:
        seqs = {shard: at.seq for shard, at in start.shards.items()}
        self._left = deque(record for record in records if record.seq > seqs[record.shard])
        self._sizes = deque(sizes)
        self._stop = stop
        self._takes = True
        self.killed_at: int | None = None
        self.place = SimpleNamespace(position=lambda: start)

    def read(self, ready: deque[VEvent], _timeout_s: float | None) -> None:
        """Give the records of a batch, and none the next time, at which the applier commits."""
        if self.killed_at is not None:
            self.killed_at -= 1
            if self.killed_at < 0:
                raise KilledError
        self._takes = not self._takes
        if self._takes:
            return
        if not self._left:
            self._stop.set()
        count = self._sizes.popleft() if self._sizes else 5
        while self._left and (count > 0 or not ready[-1].last):
            ready.append(self._left.popleft())
            count -= ready[-1].last

    def close(self) -> None:
        """End."""


class NoReporter:
    """Nobody hears how far the applier is."""

    def __init__(self, *_args: Any) -> None:
        """Remember nothing."""

    def note(self, _position: Callable[[], Any]) -> None:
        """Say nothing."""


@dataclass
class MergeTarget:
    """A target on a real server with one table, for one history after the other."""

    database: DatabaseFixture
    kind: TableKind
    schema: str = field(default_factory=fresh_schema)

    def __post_init__(self) -> None:
        self.connection = self.database.connect()
        with self.connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {self.schema} CHARACTER SET utf8mb4")
            cursor.execute(f"CREATE TABLE {self.schema}.w ({self.kind.definition})")
            cursor.execute(f"CREATE TABLE {self.schema}.v (id INT PRIMARY KEY, user_id BIGINT)")
        self.server = resharder_of(self.database, TARGET)
        self.shape = TableShape(self.schema, "w", self.kind.columns, (0,))

    def begin(self, history: History) -> ReshardPlan:
        """Empty the target, and begin a merge."""
        shards = SHARDS[history.sources]
        start = StreamPosition(0, 0, {shard: ShardPosition(0, 0, None) for shard in shards})
        plan = ReshardPlan(
            f"r-{self.schema}",
            "commerce",
            shards,
            (TARGET,),
            tuple(TableVindex(self.schema, table, ("user_id",), "hash") for table in ("v", "w")),
            start.to_string(),
            dict.fromkeys(shards, 0),
        )
        with self.connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {self.schema}.w")
        with open_session(self.server) as connection:
            create_internal_tables(connection)
            write_plan(connection, plan)
        return plan

    def records(self, history: History) -> list[VEvent]:
        """The records of the sources' logs; of a transaction all rows, the last one ends it."""
        shards = SHARDS[history.sources]
        self._users = users_of(shards)
        position = {shard: ShardPosition(0, 0, None) for shard in shards}
        seqs = dict.fromkeys(shards, 0)
        found: list[VEvent] = []
        for number, commit in enumerate(history.commits):
            changes = commit.changes or ((None, None),)
            for i, (old, new) in enumerate(changes):
                shard = shards[commit.source]
                seqs[shard] += 1
                at = TokenText(1 + number, shard, f"{UUID}:1-{seqs[shard]}")
                is_last = i == len(changes) - 1
                record = self._record(commit, old, new, at, seqs[shard], last=is_last)
                position[shard] = ShardPosition(seqs[shard], seqs[shard], at.token)
                record.deliver(Position(StreamPosition(0, 1 + number, dict(position))), 1)
                found.append(record)
        return found

    def _record(
        self, commit: Commit, old: Image, new: Image, at: TokenText, seq: int, *, last: bool
    ) -> VEvent:
        before, after = self._image(commit, old), self._image(commit, new)
        op = Op.UPDATE if old and new else Op.INSERT if new else Op.DELETE if old else Op.NONE
        same: dict[str, Any] = {
            "seq": seq,
            "token_text": at,
            "gtid": f"{UUID}:{seq}",
            "last": last,
            "database": self.schema,
            "table": "w",
            "shard": at.shard,
            "offset": seq,
            "shape": self.shape,
        }
        if commit.empties:
            statement = "DROP TABLE v, w" if seq % 2 else "TRUNCATE TABLE w"
            same |= {"type": EventType.DDL, "shape": None, "statement": statement}
        elif op is Op.NONE:
            same |= {"type": EventType.JOURNAL, "shape": None, "statement": "{}"}
        return event(Op.READ if commit.copies and new else op, before, after, **same)

    def _image(self, commit: Commit, row: Image) -> Row | None:
        if row is None:
            return None
        user = self._users[commit.source][row.user]
        return {**self.kind.row_of(row), "user_id": user, "n": row.n}

    def rows(self) -> dict[int, tuple[Any, ...]]:
        """The rows of the table, by their version, which is unique."""
        self.connection.commit()
        names = ", ".join(column.name for column in self.kind.columns)
        found = rows(self.connection, f"SELECT {names} FROM {self.schema}.w")
        return {row[-1]: row for row in found}

    def wanted(self, history: History) -> dict[int, tuple[Any, ...]]:
        """The rows that the sources hold in the end."""
        found = {}
        for source, live in enumerate(history.live):
            for row in live.values():
                image = self._image(Commit(0, source, 0), row)
                assert image is not None
                found[row.n] = tuple(image[column.name] for column in self.kind.columns)
        return found

    def aside(self, plan: ReshardPlan) -> set[int]:
        """The versions of the rows that wait aside."""
        self.connection.commit()
        waiting = read_aside(self.connection, plan.reshard_id)
        return {int(row.values.rstrip(")").rpartition(", ")[2]) for row in waiting}

    def commits(self, plan: ReshardPlan, records: list[VEvent]) -> int:
        """How many commits of the history the target has, by its checkpoints."""
        found = read_checkpoints(self.connection, plan.reshard_id)
        return sum(r.last and r.seq <= found[r.shard].seq for r in records)

    def apply(
        self,
        plan: ReshardPlan,
        records: list[VEvent],
        sizes: Sequence[int],
        *,
        killed_at: int | None = None,
    ) -> None:
        """Run an applier to the end of the records, or until it is killed."""
        stop = threading.Event()

        def source_stream(start: StreamPosition, **_rest: Any) -> ServedHistory:
            served = ServedHistory(records, sizes, start, stop)
            served.killed_at = killed_at
            return served

        accepted = frozenset(r.gtid for r in records if r.type is EventType.DDL)
        settings = ApplierSettings(plan, self.server, NO_KAFKA, accepted_ddl=accepted)
        with patch.multiple(applier, source_stream=source_stream, ReaderReporter=NoReporter):
            try:
                run_applier(settings, stop)
            except KilledError:
                assert killed_at is not None
