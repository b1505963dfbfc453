"""One value of each format that shardstream keeps, and the file that holds them as version 1 wrote.

`python -m tests.recorded.written` writes the file. It is written once per version of a format: a
file that is written again would only show that today's code reads what today's code writes.
"""

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Final

from event_token import EventToken, Flavor, ShardPosition, StreamPosition, parse_gtid_set
from spark_consumers.source.stream_offset import StreamOffset
from tests.topics.records.events import SHARD, UUID, ddl_event, insert
from tests.topics.records.record_encoder import RecordEncoder
from tests.topics.schemas.memory_schema_ids import MemorySchemaIds
from topics.keyspace.audit import Act, encode_act
from topics.keyspace.topology import (
    BeginDecision,
    ReshardEntry,
    ShardEntry,
    ShardState,
    TableVindex,
    Topology,
    topology_to_json,
)
from topics.progress.codec import encode_progress, note_headers
from topics.progress.copy_topic import (
    CopyAction,
    CopyAnswer,
    CopyRequest,
    CopyState,
    TableCopy,
    encode,
    record_key,
)
from topics.progress.record import (
    LastDdl,
    LastTransaction,
    Mark,
    MarkKind,
    Progress,
    Skipped,
    StopReason,
    Tick,
)
from topics.reading.row_filters import ReadBeforeHop
from topics.records.skip_record import Skip, SkipKind, encode_skip
from topics.records.statement_record import encode_journal
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import EventType, InvalidDate, Op, Row, TokenText

FILE: Final = Path(__file__).with_name("version_1.json")

T0_US: Final = 1_767_225_600_000_000
_SQL_TYPES: Final = {
    "unsigned-long": "bigint unsigned",
    "timestamp": "timestamp(6)",
    "datetime": "datetime(3)",
}
_ROW: Final[Row] = {
    "int": -7,
    "long": 2**40,
    "unsigned-long": 2**64 - 1,
    "float": 0.5,
    "double": 0.1,
    "string": "größer",
    "bytes": b"\x00\xff",
    "date": date(2026, 1, 31),
    "time": -timedelta(hours=800, microseconds=1),
    "datetime": datetime(2026, 1, 31, 12, 0, 0, 123_000),  # noqa: DTZ001 - DATETIME has no zone
    "timestamp": datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC),
    "year": 1901,
    "enum": "small",
    "set": ["small", "größer"],
    "bit": 5,
    "bit64": 2**63,
    "json": '{"a": [1, null]}',
    "decimal": Decimal("-12.30"),
    "wide decimal": Decimal("1E-30"),
}
# A column of each kind that version 1 has, named after it.
EVERY_KIND: Final = TableShape(
    "shop",
    "every €",
    (
        *(
            Column(
                kind,
                ValueKind(kind),
                _SQL_TYPES.get(kind, kind),
                labels=("small", "größer") if kind in {"enum", "set"} else (),
            )
            for kind in _ROW
            if not kind.endswith("decimal")
        ),
        Column("decimal", ValueKind.DECIMAL, "decimal(12,2)", 12, 2),
        Column("wide decimal", ValueKind.DECIMAL, "decimal(65,30)", 65, 30),
    ),
    (0, 1),
)
_ORIGIN: Final = TokenText(T0_US - 1, "40-80", f"{UUID}:1-4")
_INSERT: Final = insert(EVERY_KIND, dict(_ROW))
# Rows of each op, a row without some columns, one with an invalid date, NULLs and a statement.
EVENTS: Final = (
    replace(_INSERT, seq=1, offset=0, last=False),
    replace(
        _INSERT,
        seq=2,
        offset=1,
        op=Op.UPDATE,
        row_index=1,
        keyspace_id_before=b"\x12",
        token_text=replace(_INSERT.token_text, origin=_ORIGIN),
        before={"int": -7, "long": 2**40},
        after={**_ROW, "date": InvalidDate("2024-02-00")},
    ),
    replace(_INSERT, seq=3, offset=3, op=Op.DELETE, before=dict.fromkeys(_ROW), after=None),
    replace(_INSERT, seq=4, offset=5, op=Op.READ),
    replace(ddl_event("ALTER TABLE t ADD x INT"), seq=5, offset=7),
    replace(ddl_event('{"table": "t"}'), seq=6, offset=9, type=EventType.LAST_PK),
    replace(ddl_event('{"table": "t"}'), seq=7, offset=11, type=EventType.COPY_COMPLETED),
)
_STATEMENT_TOKEN: Final = TokenText(T0_US, SHARD, "0-1-5")
_MARK: Final = Mark(MarkKind.END, 13, "r1", ("-80",), ("-40", "40-80"), T0_US)
SKIP: Final = Skip(SkipKind.TRANSACTION, f"{UUID}:7", "ticket 17")
# Written by commands: a mark of a reshard and a skip.
JOURNAL: Final = replace(
    ddl_event(_MARK.journal_text()),
    seq=8,
    offset=13,
    type=EventType.JOURNAL,
    token_text=_STATEMENT_TOKEN,
    gtid="",
    database="_shardstream",
)
SKIPPED: Final = replace(
    ddl_event(SKIP.to_json()),
    seq=9,
    offset=15,
    type=EventType.SKIP,
    token_text=_STATEMENT_TOKEN,
    gtid=f"{UUID}:7",
    database="",
)
_HEARTBEAT: Final = Progress(1, 0, 0, "mysql", "", T0_US, (), None, "db1", T0_US, 0)
PROGRESS: Final = (
    _HEARTBEAT,
    Progress(
        first_seq=1,
        last_seq=8,
        end_offset=14,
        flavor="mysql",
        position=f"{UUID}:1-10",
        head_us=T0_US + 1,
        ticks=(Tick(T0_US, 0), Tick(T0_US + 10_000, 7)),
        mark=_MARK,
        server="db1",
        server_time_us=T0_US + 2,
        lag_ms=3,
        lasts=(
            LastTransaction(f"{UUID}:tag:5", T0_US - 1, UUID, "binlog.000006", 4_711),
            LastTransaction(f"{UUID}:10", T0_US, UUID, "binlog.000007", 157),
        ),
        identity="9f2c",
        skipped=Skipped(1, T0_US),
        ddl=LastDdl(T0_US, "ALTER TABLE", "shop.t"),
        stopped=StopReason(T0_US, "Halt", "a reason", 2),
    ),
)
TOKEN: Final = EventToken(
    T0_US,
    "-80",
    parse_gtid_set(f"{UUID}:1-10:12,{UUID}:tag:5", Flavor.MYSQL),
    EventToken(T0_US - 1, "80-", parse_gtid_set("0-1-5,1-1-9", Flavor.MARIADB)),
)
POSITION: Final = StreamPosition(
    2, T0_US, {"-80": ShardPosition(14, 8, TOKEN), "80-.2": ShardPosition(0, 0, None)}
)
TOPOLOGY: Final = Topology(
    "commerce",
    1,
    (
        ShardEntry("-", ShardState.RETIRED),
        ShardEntry("-80"),
        ShardEntry("80-"),
        ShardEntry("-40", ShardState.TARGET),
        ShardEntry("40-80", ShardState.TARGET),
    ),
    (TableVindex("shop", "orders", ("customer_id",), "xxhash"),),
    (
        ReshardEntry("r1", ("-",), ("-80", "80-"), "COMPLETED", T0_US),
        ReshardEntry(
            "r2", ("-80",), ("-40", "40-80"), "RUNNING", None, BeginDecision(T0_US, {"-80": 8})
        ),
    ),
    {"": "fingerprint"},
)
COPIES: Final = (
    TableCopy(
        database="shop",
        table="orders",
        copy_id="c1",
        state=CopyState.COPYING,
        begun_us=T0_US,
        updated_us=T0_US + 1,
        where="id > 5",
        rule="include",
        key=("id",),
        last_key=("7",),
        last_key_text={"id": "7"},
        pieces=1,
        rows=2,
        rows_read=3,
        rows_estimated=4,
        rows_per_s=0.5,
        note="a note",
        begun_seq=6,
        seq=7,
    ),
    CopyRequest(CopyAction.START, ("shop.orders",), "id > 5", "q1", 6),
    CopyAnswer("q1", ("shop.orders",), ("a problem",)),
)
ACT: Final = Act("skip", "-80 --gtid 0-1-5", "ticket 17", "done", "ann@ops-1", T0_US, "a1")
OFFSET: Final = StreamOffset(
    position=POSITION,
    splits={"-80": [(7, 4)]},
    seen={"80-.2": ReadBeforeHop(T0_US, T0_US - 1, True, {"80-": TOKEN})},
    begin=StreamOffset(StreamPosition(2, T0_US, {"-80": ShardPosition(0, 0, None)})),
    logs={"-80": "MkTRuOSNRtqbpdHWzb8dRw"},
    key_range="-",
)


def recorded() -> dict[str, object]:
    """Return all values as today's code writes them, bytes in hexadecimal digits."""
    ids = MemorySchemaIds()
    encoder = RecordEncoder(ids, "commerce")
    records = [encoder.encode(event) for event in EVENTS]
    records.append(
        encode_journal(_MARK.journal_text(), seq=8, token=_STATEMENT_TOKEN, schema_ids=ids)
    )
    records.append(
        encode_skip(SKIP, seq=9, token=_STATEMENT_TOKEN, gtid=f"{UUID}:7", schema_ids=ids)
    )
    progress = [
        {
            "value": encode_progress(each, ids).hex(),
            "headers": [(name, bytes(value).hex()) for name, value in _headers(each)],
        }
        for each in PROGRESS
    ]
    return {
        "records": [record.hex() for record in records],
        "progress": progress,
        "schemas": ids.texts,
        "token": TOKEN.to_string(),
        "position": POSITION.to_string(),
        "topology": topology_to_json(TOPOLOGY).decode(),
        "copies": [(record_key(each).decode(), encode(each).decode()) for each in COPIES],
        "offset": OFFSET.to_document(),
        "audit": encode_act(ACT).decode(),
    }


def _headers(progress: Progress) -> list[tuple[str, bytes]]:
    return [(name, value) for name, value in note_headers(progress) if isinstance(value, bytes)]


if __name__ == "__main__":
    FILE.write_text(json.dumps(recorded(), indent=1, ensure_ascii=False) + "\n")
