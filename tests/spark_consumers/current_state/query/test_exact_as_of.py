"""Tables as of any microsecond: a target's batch and the changes of a change log after it."""

import json
import re
import shlex
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from event_token import ShardPosition, StreamPosition
from event_token.errors import UsageError
from spark_consumers.applying.changes import KnownTable
from spark_consumers.applying.evolution import with_texts
from spark_consumers.applying.tables import Change
from spark_consumers.change_log.delta_commit import ensure_table
from spark_consumers.change_log.replay import replay_changelog
from spark_consumers.current_state.query.as_of import table_as_of
from spark_consumers.current_state.query.json_images import typed_images
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.decoding.output_columns import choose_columns
from spark_consumers.decoding.record_decoder import RecordDecoder
from spark_consumers.decoding.shard_decoder import ShardDecoder
from spark_consumers.errors import CannotApply
from spark_consumers.sink_query.origin import Origin
from tests.generated import examples
from tests.shardstream.command_line import run
from tests.spark_consumers.applying.batches import ORDERS, Source, event_of
from tests.spark_consumers.applying.histories import START_US, History
from tests.spark_consumers.change_log.log_rows import SCHEMA, commit_rows
from tests.spark_consumers.current_state.query.batch_queries import Query
from tests.spark_consumers.rows import events, shapes
from tests.topics.records.record_encoder import RecordEncoder
from tests.topics.schemas.memory_schema_ids import MemorySchemaIds
from topics.records.skip_record import Skip, SkipKind
from topics.records.table_shape import Column, ValueKind
from topics.records.vevent import VEvent

ALL_US = 2**50


def logged(record: Change) -> dict[str, object]:
    """A record as the change log has it: its images without spaces."""
    row = {name: record.get(name) for name in SCHEMA.names}
    images = {name: row[name] for name in ("before", "after") if row[name] is not None}
    return row | {
        name: str(text).replace(": ", ":").replace(", ", ",") for name, text in images.items()
    }


class Followed:
    """A log that a state and a change log follow, each in batches of its own."""

    def __init__(self, folder: Path, log: list[Change]) -> None:
        self.target, self.log = str(folder / "state"), str(folder / "log")
        self.records = sorted(log, key=lambda r: (r["timestamp_us"], r["shard"], r["seq"]))
        self.query = Query(folder / "state", Source())
        self.query.target = replace(self.query.target, origin=Origin("commerce"))
        self.rows = self.query.source.rows(event_of(record) for record in self.records)
        self.batches = 0

    def times(self) -> list[int]:
        """The times of the records."""
        return sorted({int(str(record["timestamp_us"])) for record in self.records})

    def follow(self, cuts: list[int]) -> None:
        """Apply everything to the state, in batches that end before given times."""
        begin = 0
        for end in [*cuts, ALL_US]:
            times = [int(str(row["timestamp_us"])) for row in self.rows]
            batch = [r for r, at in zip(self.rows, times, strict=True) if begin <= at < end]
            self.query.run(batch, frontier_us=end)
            begin = end

    def keep(self, begin_us: int = 0, end_us: int = ALL_US) -> None:
        """Write the records from one time to another to the change log."""
        chosen = [r for r in self.records if begin_us <= int(str(r["timestamp_us"])) < end_us]
        rows = [logged(record) for record in chosen]
        seqs = {str(record["shard"]): int(str(record["seq"])) for record in chosen}
        shards = {shard: ShardPosition(seq, seq, None) for shard, seq in seqs.items()}
        end = StreamPosition(0, end_us, shards)
        commit_rows(self.log, rows, self.batches, contiguous=False, end=end)
        self.batches += 1

    def as_of(self, time_us: int) -> dict[int, int]:
        """The values by id as of a time, by state and change log."""
        rows = table_as_of(self.target, "shop.orders", time_us, changelog=self.log).rows.to_pylist()
        found = {row["id"]: row["value"] for row in rows}
        assert len(found) == len(rows), "a key has two rows"
        return found

    def replayed(self, time_us: int) -> dict[int, int]:
        """The values by id as of a time, by the change log alone."""
        table = replay_changelog(self.log, until_us=time_us).get(("shop", "orders"))
        rows: list[Any] = [] if table is None else table.rows()
        return {row["id"]: row["value"] for row in rows}


@settings(max_examples=examples(8), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(5, 50))
def test_any_time_is_that_of_a_replay(random: Random, steps: int) -> None:
    """Moves, skewed clocks, splits, TRUNCATE: state and change log give what the log alone does."""
    history = History(random)
    history.put()
    history.run(steps)
    with tempfile.TemporaryDirectory() as folder:
        followed = Followed(Path(folder), history.log)
        times = followed.times()
        cuts = sorted(random.sample(times, min(len(times), 3)))
        followed.follow([START_US - 1_000, *cuts])
        followed.keep()
        # A table whose first rows were truncated in their own batch is not made.
        assume((Path(followed.target) / "shop" / "orders").exists())

        asked = [at + step for at in random.sample(times, min(len(times), 6)) for step in (0, 1)]
        for time_us in asked:
            assert followed.as_of(time_us) == followed.replayed(time_us)


def put(history: History, number: int) -> None:
    """Change rows, at times that differ."""
    for _ in range(number):
        history.now_us += 100
        history.put()


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    """Thirty changes of which the state has the first ten in a batch, and the rest in another."""
    history = History(Random(1))
    put(history, 30)
    made = Followed(tmp_path, history.log)
    made.follow([made.times()[10]])
    return made


def test_a_change_log_that_ends_or_begins_too_early_or_late_is_refused(followed: Followed) -> None:
    """Both name the shard or the time; a log that has no gap behind the batch is enough."""
    times = followed.times()
    followed.keep(times[15], times[20])

    with pytest.raises(UsageError, match=r"reaches 1970-01-01T00:00:01\.\d+\+00:00 only"):
        followed.as_of(times[25])
    with pytest.raises(UsageError, match=r"begins too late: it has shard .* from seq"):
        followed.as_of(times[18])
    with pytest.raises(UsageError, match="its frontiers begin later"):
        followed.as_of(times[5])


def test_a_log_that_lacks_a_shard_is_refused(followed: Followed) -> None:
    """A change log of another key range would give the rows without some shard's changes."""
    shards = {record["shard"] for record in followed.records}
    kept = followed.records[-1]["shard"]
    followed.records = [record for record in followed.records if record["shard"] == kept]
    followed.keep()

    assert len(shards) > 1
    with pytest.raises(UsageError, match=r"has nothing of shard .*: name a log of the same"):
        followed.as_of(followed.times()[-1])


def test_an_idle_log_reaches_as_far_as_the_state_that_had_nothing_more(followed: Followed) -> None:
    """The end of a change log does not move while nothing changes; the state's frontier does."""
    followed.keep(0, followed.times()[-1] + 1)

    assert followed.as_of(ALL_US - 1) == followed.replayed(ALL_US - 1)


def test_a_column_that_the_target_does_not_have_is_named(followed: Followed) -> None:
    """A change log that is ahead of the state may have columns that the table lacks."""
    [record] = [r for r in followed.records if r["timestamp_us"] == followed.times()[12]]
    at = followed.records.index(record)
    followed.records[at] = {**record, "after": '{"id":1,"value":2,"extra":3}'}
    followed.keep()

    with pytest.raises(CannotApply, match="column 'extra', which the target's table does not have"):
        followed.as_of(followed.times()[13])


def test_a_skip_must_be_accepted_again(followed: Followed) -> None:
    """A transaction that was skipped in the window may have changed rows."""
    at = followed.times()[12]
    skip = dict.fromkeys(SCHEMA.names) | {"type": "SKIP", "gtid": "a:1", "statement": "{}"}
    skip |= {"shard": "-80", "seq": 10_000, "offset": 10_000, "timestamp_us": at}
    followed.records.append(skip)
    followed.keep()
    asked = (followed.target, "shop.orders", at + 1)

    with pytest.raises(CannotApply, match="accept_skip="):
        table_as_of(*asked, changelog=followed.log)
    found = table_as_of(*asked, changelog=followed.log, accept_skip=["a:1"])

    assert found.rows.num_rows > 0


def test_the_command_that_a_stop_names_accepts_all_skips_of_the_reason(
    followed: Followed, tmp_path: Path
) -> None:
    """Two skips of one reason: the command that is printed at the first gets past both."""
    at = followed.times()[12]
    for number in (7, 8):
        gtid = f"4c4b4a49-0000-11f0-8000-000000000001:{number}"
        told = Skip(SkipKind.TRANSACTION, gtid, "ticket 19: it's hourly, by hand").to_json()
        skip = dict.fromkeys(SCHEMA.names) | {"type": "SKIP", "gtid": gtid, "statement": told}
        place = {"seq": 10_000 + number, "offset": 10_000 + number, "timestamp_us": at}
        followed.records.append(skip | {"shard": "-80"} | place)
    followed.keep()
    time = datetime.fromtimestamp((at + 1) / 1e6, UTC).isoformat(timespec="microseconds")
    asked = ["state", "as-of", followed.target, "shop.orders", time.replace("+00:00", "Z")]
    asked += ["--to", str(tmp_path / "rows.parquet"), "--changelog", followed.log]

    stopped = run(*asked)
    command = re.search(r"^Once they are right: shardstream (.*)$", stopped.stderr, re.MULTILINE)
    assert command is not None, stopped.stderr
    done = run(*shlex.split(command[1]))
    bad = run(*asked, "--accept-skip", "ticket 19")

    assert (stopped.returncode, done.returncode, bad.returncode) == (1, 0, 2), done.stderr
    assert "[CannotApply]" in stopped.stderr
    assert "rows of shop.orders, exact as of" in done.stdout
    assert "--accept-skip 'ticket 19': name GTIDs, or reason:TEXT" in bad.stderr


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE orders MODIFY value BIGINT UNSIGNED",
        "RENAME TABLE orders TO _orders_old, _orders_new TO orders",
    ],
)
def test_values_that_were_not_logged_are_not_told(followed: Followed, text: str) -> None:
    """Behind such a statement rows have values that the log does not have yet."""
    at = followed.times()[12]
    altered = dict.fromkeys(SCHEMA.names) | {"type": "DDL", "gtid": "a:1", "statement": text}
    altered |= {"shard": "-80", "seq": 10_000, "offset": 10_000, "timestamp_us": at}
    followed.records.append(altered | {"database": "shop"})
    followed.keep()
    asked = (followed.target, "shop.orders", at + 1)

    with pytest.raises(CannotApply, match=r"^shop\.orders, shard -80, seq 10000 .*--accept-skip"):
        table_as_of(*asked, changelog=followed.log)
    if text.startswith("ALTER"):
        found = table_as_of(*asked, changelog=followed.log, accept_skip=["a:1"])
        assert found.rows.num_rows > 0


def test_a_log_of_another_stream_is_refused(followed: Followed) -> None:
    """A log that tells another keyspace or key range, or has keyspace ids in its keys."""
    time_us = followed.times()[12]
    for origin, message in (
        (Origin("users"), "is of keyspace users, and not commerce as the current state"),
        (Origin("commerce", "-80"), "is of key range -80, and not - as the current state"),
        (Origin("commerce", "-", KeyScope.SHARD), "keys of this change log have keyspace ids"),
    ):
        followed.log += "x"
        ensure_table(followed.log, SCHEMA, {}, origin)
        with pytest.raises(UsageError, match=message):
            followed.as_of(time_us)


def test_a_log_that_others_have_compacted_is_read(followed: Followed) -> None:
    """Files of several shards, of which statistics do not tell each shard's seqs."""
    for begin, end in ((0, 9), (9, 20), (20, 30)):
        times = [*followed.times(), ALL_US]
        followed.keep(times[begin], times[end])
    expected = followed.as_of(followed.times()[15])

    DeltaTable(followed.log).optimize.compact()

    assert len(DeltaTable(followed.log).file_uris()) == 1
    assert followed.as_of(followed.times()[15]) == expected


def test_a_log_of_structs_is_refused(followed: Followed) -> None:
    """A change log of one table may have typed images, and lacks what the others need."""
    image = pa.struct([pa.field("id", pa.int64())])
    at = SCHEMA.get_field_index("after")
    schema = SCHEMA.set(at, pa.field("after", image))
    commit_rows(
        followed.log,
        [dict.fromkeys(SCHEMA.names) | {"seq": 1, "shard": "-80", "offset": 1, "timestamp_us": 1}],
        0,
        contiguous=False,
        schema=schema,
    )

    with pytest.raises(UsageError, match="has the rows of one table only"):
        followed.as_of(followed.times()[12])


@st.composite
def typed_events(draw: st.DrawFn) -> VEvent:
    """Any row of a table whose names differ in more than case, without the JSON value null."""
    shape = draw(
        shapes().filter(lambda s: len({c.name.lower() for c in s.columns}) == len(s.columns))
    )
    event = draw(events(shape, 1).filter(lambda event: event.after is not None))
    documents = [column.name for column in shape.columns if column.kind is ValueKind.JSON]
    assume(not any(str((event.after or {}).get(name)).strip() == "null" for name in documents))
    return event


@given(typed_events())
def test_json_images_have_the_values_of_records(event: VEvent) -> None:
    """Any column type: the JSON text of a change log gives what a decoded record gives."""
    schema_ids = MemorySchemaIds()
    assert event.shape is not None
    record = RecordEncoder(schema_ids).encode(event)
    decoder = ShardDecoder(
        event.shard, choose_columns("after,off_calendar,schema_id"), schema_ids.text_of
    )
    decoder.begin(event.seq, 0)
    [logged] = decoder.decode([record], [0]).to_pylist()
    expected = RecordDecoder(schema_ids.text_of).decode(
        logged["schema_id"], [record], [event.op.value]
    )

    dates = json.loads(logged["off_calendar"] or "{}").get("after") or {}
    known = KnownTable(with_texts(event.shape, dates))
    found = typed_images(known, [logged["after"]], [logged["off_calendar"]])

    own = [column.name for column in event.shape.columns]
    assert found.select(own).to_struct_array().combine_chunks() == expected["after"]
    assert {name: found[f"{name}__text"][0].as_py() for name in dates} == dates


def test_images_follow_renames_and_names_in_other_case() -> None:
    """A value goes to the column that its name has now; one of two types is refused."""
    columns = (Column("id", ValueKind.LONG, "bigint"), Column("Note", ValueKind.STRING, "text"))
    shape = replace(ORDERS, columns=columns)
    known = KnownTable(shape, {"text": "Note"})
    more = replace(shape, columns=(*columns, Column("Note__v2", ValueKind.LONG, "bigint")))

    found = typed_images(known, ['{"ID":1,"text":"a"}', '{"id":2,"note":"b"}'], [None, None])

    assert found.to_pylist() == [{"id": 1, "Note": "a"}, {"id": 2, "Note": "b"}]
    with pytest.raises(CannotApply, match="second column for another type of 'Note'"):
        typed_images(KnownTable(more), ['{"Note":"b"}'], [None])


def test_a_name_that_another_column_got_after_a_rename_is_that_column() -> None:
    """A column was renamed and its old name given to a new one: rows before and after that."""
    columns = (*ORDERS.columns, Column("total", ValueKind.LONG, "bigint"))
    known = KnownTable(replace(ORDERS, columns=columns), {"total": "value"})

    found = typed_images(known, ['{"id":1,"total":5}', '{"id":2,"value":6,"total":7}'], [None] * 2)

    assert found.to_pylist() == [
        {"id": 1, "value": 5, "total": None},
        {"id": 2, "value": 6, "total": 7},
    ]
