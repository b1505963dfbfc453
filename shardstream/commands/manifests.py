"""`shardstream manifests`: one Kubernetes Deployment per shard of the settings."""

import json
import re
from importlib.resources import files
from string import Template
from typing import Annotated, Final

import typer

from event_token.errors import UsageError
from shardstream.commands.options import CommandLine, Config, Keyspace
from shardstream.settings.model import Settings, load_settings

# A label's value, which the name of a Deployment becomes.
NAME_LENGTH_MAX: Final = 63

app = CommandLine()


@app.command()
def manifests(
    keyspace: Keyspace,
    config: Config = None,
    image: Annotated[str, typer.Option(help="Image of the producers")] = "shardstream",
) -> None:
    """Print one Kubernetes Deployment per shard, as YAML."""
    typer.echo(producer_manifests(load_settings(config), keyspace, image), nl=False)


def producer_manifests(settings: Settings, keyspace: str, image: str) -> str:
    """Return the Deployments of a keyspace's producers as YAML, in the order of the settings.

    UsageError if two shards have the same name there, or a name is too long.
    """
    template = Template((files(__package__) / "producer.yaml").read_text())
    shards = settings.keyspace(keyspace).shards
    names = {shard: deployment_name(keyspace, shard) for shard in shards}
    for shard, name in names.items():
        others = [other for other in names if names[other] == name and other != shard]
        if others or len(name) > NAME_LENGTH_MAX:
            problem = f"is also that of {others[0]}" if others else "is too long"
            raise UsageError(f"{keyspace}/{shard}: the name of its Deployment, {name}, {problem}")
    return "---\n".join(
        template.substitute(
            name=name,
            keyspace=json.dumps(keyspace),
            shard=json.dumps(shard),
            shard_text=f"{keyspace}/{shard}",
            image=json.dumps(image),
        )
        for shard, name in names.items()
    )


def deployment_name(keyspace: str, shard: str) -> str:
    """Return `produce-commerce-start-80` for `-80`: a DNS label, which cannot begin with a dash."""
    start, _, end = shard.partition("-")
    words = f"produce-{keyspace}-{start or 'start'}-{end or 'end'}"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
