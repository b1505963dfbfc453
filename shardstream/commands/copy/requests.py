"""Sends copy requests to producers and reports their answers."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rich.console import Console

from event_token.errors import UsageError
from shardstream.settings.model import Settings
from topics.names import ShardTopics
from topics.progress.copy_topic import CopyRequest, ask_and_wait

# A producer looks for requests ten times a second; a reconnect takes some seconds.
ANSWER_S_MAX: Final = 30.0


def ask_shards(
    settings: Settings,
    keyspace: str,
    shards: Sequence[str],
    request: CopyRequest,
) -> None:
    """Send a request to each shard's producer.

    UsageError lists everything that was refused; Retry when a producer does not answer.
    """
    console = Console(soft_wrap=True, highlight=False)
    action = request.action.value
    problems = []
    for topics in copied_shards(settings, keyspace, shards):
        asked = replace(request, id=uuid.uuid4().hex)
        answer = ask_and_wait(settings.kafka_client(), topics, asked, ANSWER_S_MAX)
        for name in answer.tables:
            console.print(f"{topics.log}: {action} {name}", markup=False)
        problems += [f"{topics.log}: {problem}" for problem in answer.problems]
        if not answer.tables and not answer.problems:
            console.print(f"{topics.log}: no table to {action}", markup=False)
    if problems:
        raise UsageError("\n".join(problems))


def copied_shards(settings: Settings, keyspace: str, shards: Sequence[str]) -> list[ShardTopics]:
    """Return the topics of the named shards, or of all; UsageError for an unknown shard."""
    names = shards or sorted(settings.keyspace(keyspace).shards)
    for shard in names:
        settings.shard(keyspace, shard)
    return [ShardTopics(keyspace, shard) for shard in names]
