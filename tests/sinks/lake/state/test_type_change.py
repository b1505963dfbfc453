"""Columns whose type changes to one that does not hold the stored values."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from event_token.errors import UsageError
from sinks.lake.state.options import StateOptions
from sinks.rule.policy import OnTypeChange
from spark_consumers.state import parse_options
from tests.sinks.lake.state.batch_queries import Query
from tests.sinks.rule.batches import ORDERS, Source, change
from topics.errors import ShapeConflict
from topics.records.table_shape import Column, ValueKind

TEXT = replace(ORDERS, columns=(ORDERS.columns[0], Column("value", ValueKind.STRING, "text")))


def values(folder: Path) -> dict[int, tuple[int | None, str | None]]:
    """The old and the new column of each row."""
    rows = pa.table(DeltaTable(str(folder / "shop" / "orders")).scan()).to_pylist()
    return {row["id"]: (row["value"], row["value__v2"]) for row in rows}


@pytest.mark.parametrize("is_first_batch", [False, True])
def test_a_type_that_does_not_fit_goes_on_in_a_new_column(
    tmp_path: Path, *, is_first_batch: bool
) -> None:
    """`value` becomes a text on one shard before the other; without the option the query stops."""
    source = Source()
    query = Query(tmp_path, source)
    numbers = [change("-80", i, 100 + i, None, {"id": i, "value": i}) for i in range(1, 9)]
    texts = [
        change("80-", 1, 200, None, {"id": 20, "value": "a"}, shape=TEXT),
        change("-80", 9, 210, {"id": 1, "value": "1"}, {"id": 1, "value": "b"}, shape=TEXT),
        change("80-", 2, 220, None, {"id": 21, "value": 7}),
    ]
    if not is_first_batch:
        query.run(source.rows(numbers))
        numbers = []
    with pytest.raises(ShapeConflict, match=r"column 'value' is text .* on_type_change=new-column"):
        query.run(source.rows([*numbers, *texts]))
    query.choose(on_type_change=OnTypeChange.NEW_COLUMN)

    query.run_until_done(source.rows([*numbers, *texts]))

    expected = {i: (i, None) for i in range(2, 9)} | {20: (None, "a"), 21: (7, None)}
    assert values(tmp_path) == expected | {1: (None, "b")}


def test_an_unknown_answer_to_a_type_change_is_refused() -> None:
    """A misspelled option must not silently mean the default."""
    options = {"path": "t", "checkpointLocation": "c", "onTypeChange": "newcolumn"}
    with pytest.raises(UsageError, match="'newcolumn': stop or new-column"):
        parse_options(options)


def test_each_field_of_the_policy_is_an_option_in_camel_case() -> None:
    """A query of a user's own has every option of the command, tuples and mappings as JSON."""
    given = {"acceptSkip": '["reason:by hand"]', "history": '{"shop.orders": []}', "buckets": "4"}

    needed = {"path": "t", "checkpointLocation": "c", "kafka.bootstrap.servers": "b:1"}
    policy = parse_options({**needed, **given}).target.options

    assert policy == StateOptions(
        accept_skip=("reason:by hand",), history={"shop.orders": []}, buckets=4
    )
