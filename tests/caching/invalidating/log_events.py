"""Events of a shard log for tests of what they do to a cache."""

import json
from dataclasses import replace

from event_token import parse_gtid_set
from event_token.gtid_set import Flavor
from event_token.token import EventToken
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import EventType, Op, Row, TokenText, VEvent

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER_UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429563"
USERS = TableShape(
    "shop",
    "users",
    (Column("id", ValueKind.LONG, "bigint"), Column("email", ValueKind.STRING, "text")),
    (0,),
)


def row_event(
    before: Row | None, after: Row | None, *, shard: str = "-80", gtid: str = f"{UUID}:7"
) -> VEvent:
    """A change of a row of shop.users, by its images."""
    op = Op.INSERT if before is None else Op.DELETE if after is None else Op.UPDATE
    flavor = Flavor.MYSQL if ":" in gtid else Flavor.MARIADB
    token = EventToken(1_000, shard, parse_gtid_set(gtid, flavor))
    return VEvent(
        type=EventType.ROW,
        seq=1,
        token_text=TokenText.of(token),
        commit_us=1_000,
        gtid=gtid,
        row_index=0,
        last=True,
        database="shop",
        table="users",
        op=op,
        keyspace_id_before=None,
        keyspace_id_after=None,
        before=before,
        after=after,
        statement=None,
        shape=USERS,
        shard=shard,
        offset=4,
    )


def statement_event(kind: EventType, statement: str | dict[str, str]) -> VEvent:
    """An event without rows, with its statement."""
    text = statement if isinstance(statement, str) else json.dumps(statement)
    plain = row_event(None, {"id": 1})
    return replace(plain, type=kind, op=Op.NONE, after=None, shape=None, statement=text, table="")
