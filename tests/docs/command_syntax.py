"""Holds command lines against the commands and options that exist, without running them."""

import shlex

from typer.core import TyperGroup
from typer.main import get_command

from shardstream.commands.app import app


def check_commands(lines: str) -> None:
    """Parse each `shardstream ...` line; the parser's error where it has no such meaning."""
    for line in lines.replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(line, comments=True) or [""]
        if program == "shardstream":
            _parse(arguments)


def _parse(arguments: list[str]) -> None:
    command, context = get_command(app), None
    while True:
        context = command.make_context(command.name, arguments, parent=context)
        if not isinstance(command, TyperGroup):
            return
        name, *arguments = [*context._protected_args, *context.args]
        assert name in command.commands, f"no command {name!r}: {', '.join(command.commands)}"
        command = command.commands[name]
