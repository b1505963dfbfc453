"""What the sources changed since the position of the target, undone.

A target's snapshot holds its own checkpoint, so it stands exactly at a position of the sources.
Their snapshots are later. The rows changed between are in their logs, with what they were before:
those rows are laid over the snapshot, in temporary tables that the target's server makes.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from databases.internal_tables import INTERNAL_DATABASE
from databases.sql import quoted, rows
from event_token.errors import Retry
from resharding.apply.routing import Routes, Upsert, check_full_image
from resharding.apply.statements import StatementBuilder, TargetTable
from resharding.apply.target_session import TargetSession
from resharding.plan.reshard_plan import ReshardPlan
from resharding.verify.rows import Place
from topics.kafka.client import ClientConfig
from topics.reading.planner import ShardRange
from topics.records.record_decoder import RecordDecoder
from topics.records.schema_ids import SchemaIds
from topics.records.vevent import EventType, Op, Row, VEvent
from topics.stream.log_reader import ShardLogReader

# Keys changed between the two snapshots; with more, the target is too far behind to be compared.
WINDOW_KEYS_MAX: Final = 200_000
_SEND_BYTES: Final = 1024 * 1024

Table = tuple[str, str, str]  # source, database, table


@dataclass(slots=True)
class _Overlay:
    """Rows of one table of one source: as they were, or (absent) their keys alone."""

    name: str
    builder: StatementBuilder


class Window:
    """The changes of all sources behind the target's position."""

    def __init__(
        self,
        plan: ReshardPlan,
        session: TargetSession,
        config: ClientConfig,
        schema_ids: SchemaIds,
    ) -> None:
        """Begin with none; `session` is the verifier's own on the target."""
        self._plan = plan
        self._session = session
        self._config = config
        self._codec = RecordDecoder(schema_ids)
        self._routes = Routes(plan.tables)
        self._present: dict[Table, _Overlay] = {}
        self._absent: dict[Table, _Overlay] = {}
        self._seen: dict[Table, set[Any]] = {}
        self._keys = 0

    def read(self, part: ShardRange) -> None:
        """Take in what a source changed; only the first change of a key says what it was."""
        reader = ShardLogReader(self._config, self._plan.keyspace, part.shard)
        try:
            reader.seek(part.start_offset, part.first_seq)
            for record in reader.read(part):
                self._take(self._codec.decode(record.value, record.shard, record.offset))
        finally:
            reader.close()
        for overlay in (*self._present.values(), *self._absent.values()):
            self._session.run(overlay.builder.take())
        self._session.commit()

    def _take(self, event: VEvent) -> None:
        if event.type is EventType.DDL:
            self._routes.check_statement(event)
        table = (event.shard, event.database, event.table)
        # A copied row changes nothing on its source.
        if event.op in {Op.NONE, Op.READ} or table[1:] not in self._routes.tables:
            return
        for image, overlays in ((event.before, self._present), (event.after, self._absent)):
            if image is not None:
                check_full_image(event, image)
                self._add(event, image, table, overlays)

    def _add(
        self, event: VEvent, image: Row, table: Table, overlays: dict[Table, _Overlay]
    ) -> None:
        assert event.shape is not None  # noqa: S101 - rows have a shape
        key = tuple(image[event.shape.columns[i].name] for i in event.shape.primary_key)
        seen = self._seen.setdefault(table, set())
        if key in seen:
            return
        seen.add(key)
        self._keys += 1
        if self._keys > WINDOW_KEYS_MAX:
            raise Retry(
                f"{self._session.server.name}: more than {WINDOW_KEYS_MAX} rows were changed on "
                f"the sources since what the target has: let the applier catch up, then verify"
            )
        overlay = overlays.get(table)
        if overlay is None:
            kind = "was" if overlays is self._present else "new"
            overlay = overlays[table] = self._make(table, f"{kind}_{len(overlays)}")
        overlay.builder.add(Upsert(table[1], table[2], image), event)
        if overlay.builder.size_bytes >= _SEND_BYTES:
            self._session.run(overlay.builder.take())

    def _make(self, table: Table, name: str) -> _Overlay:
        """Make a temporary table; values that are unique at one time are not over time."""
        _, database, original = table
        column = self._routes.tables[database, original].column
        target = self._session.table(database, original, column)
        temporary = f"{INTERNAL_DATABASE}.{quoted(name)}"
        like = f"{quoted(database)}.{quoted(original)}"
        uniques = rows(
            self._session.connection,
            "SELECT DISTINCT index_name FROM information_schema.statistics WHERE table_schema = %s "
            "AND table_name = %s AND non_unique = 0 AND index_name <> 'PRIMARY'",
            (database, original),
        )
        self._session.execute(f"CREATE TEMPORARY TABLE {temporary} LIKE {like}")
        for (index,) in uniques:
            self._session.execute(f"ALTER TABLE {temporary} DROP INDEX {quoted(index)}")
        stands_at: TargetTable = replace(target, database=INTERNAL_DATABASE, table=name)
        builder = StatementBuilder(
            lambda _database, _table: stands_at, packet_bytes_max=self._session.packet_bytes_max
        )
        return _Overlay(temporary, builder)

    def places(self, source: str, database: str, table: str) -> tuple[list[Place], list[Place]]:
        """Where the rows stand as they were, and where the keys that were not there; each or none.

        The session's results must be bytes by then.
        """
        name = (source, database, table)
        was, new = (
            [Place(self._session.connection, overlays[name].name)] if name in overlays else []
            for overlays in (self._present, self._absent)
        )
        return was, new
