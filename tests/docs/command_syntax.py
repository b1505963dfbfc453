"""Holds command lines against the commands and options that exist, without running them."""

import shlex
from itertools import pairwise
from pathlib import Path

from typer.core import TyperGroup
from typer.main import get_command

from shardstream.commands.app import app
from shardstream.settings.model import load_settings
from shardstream.settings.reshard_settings import reshard_section


def check_commands(lines: str) -> None:
    """Parse each `shardstream ...` line; the parser's error where it has no such meaning."""
    for line in lines.replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(line, comments=True) or [""]
        if program == "shardstream":
            _parse(arguments)


def check_reshards(lines: str, settings_path: Path) -> None:
    """Hold `shardstream reshard ...` lines against the page's settings, if it has any.

    The keyspace has what resharding needs, and each `--source` and `--target` is one of its shards.
    """
    if not settings_path.exists():
        return
    for line in lines.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:2] != ["shardstream", "reshard"]:
            continue
        settings, keyspace = load_settings(settings_path), words[3]
        reshard_section(settings, keyspace)
        for option, shard in pairwise(words):
            if option in {"--source", "--target"}:
                settings.shard(keyspace, shard)


def _parse(arguments: list[str]) -> None:
    command, context = get_command(app), None
    while True:
        context = command.make_context(command.name, arguments, parent=context)
        if not isinstance(command, TyperGroup):
            return
        name, *arguments = [*context._protected_args, *context.args]
        assert name in command.commands, f"no command {name!r}: {', '.join(command.commands)}"
        command = command.commands[name]
