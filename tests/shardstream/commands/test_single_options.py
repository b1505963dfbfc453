"""An option of one value that is given twice is refused, by every command."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from event_token import UsageError
from shardstream.commands.app import app
from shardstream.commands.options import CommandLine
from shardstream.demo.composed.app import app as shop_app
from tests.shardstream.command_line import run


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command and group below one, with the words that name it."""
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))


def single_options(line: CommandLine) -> list[tuple[tuple[str, ...], Any]]:
    """Each option of one value of each command, and each flag."""
    return [
        (path, option)
        for path, command in commands(typer.main.get_command(line))
        for option in command.params
        if option.param_type_name == "option"
        and not (option.multiple or option.count or option.is_eager)
    ]


@pytest.mark.parametrize("line", [app, shop_app], ids=["shardstream", "shardstream-shop"])
def test_every_command_refuses_an_option_that_is_given_twice(line: CommandLine) -> None:
    """No command keeps the last value of an option and drops the others."""
    found = single_options(line)
    assert found
    for path, option in found:
        name = max(option.opts, key=len)
        given = [name] if option.is_flag else [name, "1"]
        with pytest.raises(UsageError, match=f"{name} is given 2 times: give it once"):
            line([*path, *given, *given], standalone_mode=False)


def test_lists_take_an_option_many_times(capsys: pytest.CaptureFixture[str]) -> None:
    """An option that takes a list is not refused, and neither is --help."""
    line = CommandLine()

    @line.command()
    def show(table: list[str] = typer.Option([], "--table")) -> None:  # noqa: B008 - typer's way
        typer.echo(" ".join(table))

    line(["--table", "a.b", "--table", "c.d"], standalone_mode=False)

    assert capsys.readouterr().out == "a.b c.d\n"


def test_the_refusal_is_one_sentence_with_status_2() -> None:
    """As an operator meets it."""
    refused = run("skip", "commerce", "-80", "--reason", "a", "--reason", "b", "--until", "u:1")

    assert refused.returncode == 2
    assert refused.stderr == "error: --reason is given 2 times: give it once\n"
