"""A group of commands in which `run` need not be named."""

from typing import Any

from shardstream.commands.single_options import StrictGroup


class RunByDefault(StrictGroup):
    """A group whose command `run` is meant where none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `run` in front of a keyspace, and of options, which may come before it."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["run", *args]
        return super().parse_args(ctx, args)
