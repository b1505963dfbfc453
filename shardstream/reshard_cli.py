"""The commands of `shardstream reshard`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False)

Keyspace = Annotated[str, typer.Argument(help="Keyspace, e.g. commerce")]
ReshardId = Annotated[str, typer.Argument(help="The reshard, by the id given at its creation")]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="Settings file; default $SHARDSTREAM_CONFIG, ./shardstream.toml"),
]


@app.callback()
def _root() -> None:
    """Split and merge shards while everything runs."""
