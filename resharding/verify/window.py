"""Undoes what the sources have changed since the target's position.

A target's snapshot holds its own checkpoint, so it stands exactly at one position of the sources,
whose snapshots are later. Rows changed in between are in the logs with their before images: those
are laid over the source snapshots, in temporary tables on the target's server.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from databases.internal_tables import INTERNAL_DATABASE
from databases.sql import quoted, rows
from event_token.errors import Retry
from resharding.apply.changes import Upsert
from resharding.apply.routing import Routes, check_full_image, check_skip
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

# Keys changed between the snapshots; with more, the target is too far behind to be compared.
WINDOW_KEYS_MAX: Final = 200_000
_SEND_BYTES: Final = 1024 * 1024

Table = tuple[str, str, str]  # source, database, table


@dataclass(slots=True)
class _Overlay:
    """Rows of one table of one source: as they were, or the keys of rows that did not exist."""

    name: str
    builder: StatementBuilder


class Window:
    """What all sources changed after the target's position."""

    def __init__(
        self,
        plan: ReshardPlan,
        session: TargetSession,
        config: ClientConfig,
        schema_ids: SchemaIds,
    ) -> None:
        """`session`: the verifier's own session on the target."""
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
        """Read what a source changed; only a key's first change tells what the row was before."""
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
        if event.type is EventType.SKIP:
            check_skip(event)
        table = (event.shard, event.database, event.table)
        if event.op is Op.NONE or table[1:] not in self._routes.tables:
            return
        if event.op is Op.READ:  # it changes nothing on its source, but is missing on the target
            raise Retry(
                f"{self._session.server.name}: rows that were copied from {event.shard} are not "
                f"applied yet: let the applier catch up, then verify again"
            )
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
                f"{self._session.server.name}: the sources have changed more than "
                f"{WINDOW_KEYS_MAX} rows since the target's position: let the applier catch up, "
                f"then verify again"
            )
        overlay = overlays.get(table)
        if overlay is None:
            kind = "was" if overlays is self._present else "new"
            overlay = overlays[table] = self._make(table, f"{kind}_{len(overlays)}")
        overlay.builder.add(Upsert(table[1], table[2], image), event)
        if overlay.builder.size_bytes >= _SEND_BYTES:
            self._session.run(overlay.builder.take())

    def _make(self, table: Table, name: str) -> _Overlay:
        """Create a temporary table; unique at one time does not mean unique over time."""
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
        """Rows as they were, and keys of rows that did not exist yet: no place or one of each.

        By then the session must return raw bytes (`give_bytes`).
        """
        name = (source, database, table)
        was, new = (
            [Place(self._session.connection, overlays[name].name)] if name in overlays else []
            for overlays in (self._present, self._absent)
        )
        return was, new
