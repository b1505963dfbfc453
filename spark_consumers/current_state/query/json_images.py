"""Turns row images of a change log, which are JSON text, into the typed columns of a table. Pure.

`spark_consumers.row_columns.json_values` writes the JSON. There the value null of a JSON column is
no different from NULL.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from spark_consumers.applying.changes import KnownTable
from spark_consumers.applying.evolution import TEXT_SUFFIX, TYPES_OF_A_NAME_MAX
from spark_consumers.decoding.output_columns import arrow_type
from spark_consumers.errors import CannotApply
from topics.records.table_shape import Column, ValueKind

Image = Mapping[str, Any]

_SECOND_US = 1_000_000
# Numbers keep their digits: Arrow parses them by the type of the column.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


def typed_images(
    known: KnownTable, images: Sequence[str], invalid_dates: Sequence[str | None]
) -> pa.Table:
    """Return rows with the columns of a table; columns that an image lacks are null.

    `invalid_dates`: of each image the column `off_calendar`. CannotApply if the table has no column
    for a value.
    """
    names = _Names(known)
    kinds = {column.name: column.kind for column in known.shape.columns}
    rows: list[Image] = []
    for text, dates in zip(images, invalid_dates, strict=True):
        row = {}
        members = _members(text)
        own_names = {own.lower() for own, _, _ in members}
        for own, value, raw in members:
            name = names.of(own, own_names)
            is_text = isinstance(value, str) and kinds[name] is not ValueKind.JSON
            takes_json = kinds[name] in {ValueKind.JSON, ValueKind.STRING}
            row[name] = raw if takes_json and not is_text and value is not None else value
        after = {} if dates is None else json.loads(dates).get("after") or {}
        for own, date in after.items():
            row |= {names.of(own, own_names): None, names.of(own + TEXT_SUFFIX): date}
        rows.append(row)
    columns = {
        column.name: _array(column, [row.get(column.name) for row in rows])
        for column in known.shape.columns
    }
    return pa.table(columns)


class _Names:
    """The columns of a table by the names that the source's table has, or had."""

    def __init__(self, known: KnownTable) -> None:
        self._table = f"{known.shape.database}.{known.shape.table}"
        names = [column.name for column in known.shape.columns]
        self._columns = {name.lower(): name for name in names} | {name: name for name in names}
        self._renames = {old.lower(): new for old, new in known.renames.items()}

    def of(self, name: str, image: Collection[str] = ()) -> str:
        """Return the column of a name. CannotApply: none, or more than one.

        `image`: the names of all columns of the row, in lower case. One that has the new name of a
        column as well has given the old one to another column, as in `evolution.renamed`.
        """
        now = self._renames.get(name.lower(), name)
        if now.lower() in image:
            now = name
        found = self._columns.get(now, self._columns.get(now.lower()))
        if found is None:
            raise CannotApply(
                f"{self._table}: the change log has column '{name}', which the target's table does "
                f"not have: run `shardstream state` until it has read as far, or ask for an "
                f"earlier time"
            )
        for number in range(2, TYPES_OF_A_NAME_MAX + 1):
            if f"{found}__v{number}".lower() not in self._columns:
                break
            raise CannotApply(
                f"{self._table}: the target has a second column for another type of '{found}', and "
                f"the change log does not tell which of both a value belongs to: ask for a time "
                f"without --changelog"
            )
        return found


def _members(text: str) -> list[tuple[str, Any, str]]:
    """Return name, value and text of each member of a JSON object that has no spaces of ours."""
    found = []
    at = 1
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at + (text[at] == ","))
        start = at + 1
        value, at = _DECODER.raw_decode(text, start + _spaces(text, start))
        at += _spaces(text, at)
        found.append((cast("str", name), value, text[start:at]))
    return found


def _spaces(text: str, at: int) -> int:
    """Count white space: JSON columns have the server's text, unchanged."""
    end = at
    while text[end] in " \t\n\r":
        end += 1
    return end - at


def _array(column: Column, values: Sequence[Any]) -> pa.Array:
    kind = arrow_type(column)
    parse = _PARSERS.get(column.kind)
    if parse is not None:
        return pa.array([None if value is None else parse(value) for value in values], kind)
    texts = pa.array(values, pa.list_(pa.string()) if pa.types.is_list(kind) else pa.string())
    return texts.cast(kind)


def _time_us(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    hours, minutes, seconds = text.lstrip("-").split(":")
    whole, _, fraction = seconds.partition(".")
    total_s = (int(hours) * 60 + int(minutes)) * 60 + int(whole)
    return sign * (total_s * _SECOND_US + int(fraction.ljust(6, "0")))


_PARSERS: Mapping[ValueKind, Callable[[str], object]] = {
    ValueKind.BYTES: b64decode,
    ValueKind.TIME: _time_us,
}
