"""Options of commands that are the fields of dataclasses."""

from dataclasses import dataclass, fields
from typing import Annotated, Any, get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from shardstream.commands.options import takes_fields
from sinks.database.options import DatabaseOptions
from sinks.lake.state.options import StateOptions
from sinks.rule.policy import OnTruncate, Option, RowPolicy, duration_us
from sinks.table_topics.options import TopicOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(RowPolicy):
    keyspace: str
    window_us: Annotated[int, Option("A window", "--window", parse=duration_us, default="10m")] = (
        600_000_000
    )
    inner: int = 7


def test_fields_are_options_with_their_defaults() -> None:
    """What is not given keeps the field's default, and texts are parsed."""
    app, seen = typer.Typer(), list[_Options]()

    @app.command()
    @takes_fields
    def command(keyspace: Annotated[str, typer.Argument()], options: _Options) -> None:
        assert keyspace == options.keyspace
        seen.append(options)

    for given in ([], ["--table", "a.b", "--table", "a.c", "--window", "1s", "--drop-columns"]):
        done = CliRunner().invoke(app, ["commerce", *given, "--on-truncate", "stop"])
        assert done.exception is None, done.output

    plain = _Options(keyspace="commerce", on_truncate=OnTruncate.STOP)
    tables = ("a.b", "a.c")
    assert seen[0] == plain
    assert seen[1] == _Options(
        keyspace="commerce",
        on_truncate=OnTruncate.STOP,
        tables=tables,
        window_us=1_000_000,
        drop_columns=True,
    )


@pytest.mark.parametrize("kind", [StateOptions, DatabaseOptions, TopicOptions])
def test_the_text_of_a_default_is_the_default(kind: Any) -> None:
    """A program and a command that leave an option out do the same."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        for note in get_args(hints[field.name])[1:]:
            if isinstance(note, Option) and note.parse and note.default is not None:
                assert note.parse(note.default, field.name) == field.default
