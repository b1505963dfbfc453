"""Starts at the copies (snapshots) of tables, and requests missing ones."""

from collections.abc import Collection, Sequence
from typing import Final

from event_token.errors import UsageError
from topics.kafka.client import ClientConfig
from topics.names import ShardTopics
from topics.progress.copy_topic import (
    CopyAction,
    CopyRequest,
    CopyState,
    TableCopy,
    ask_and_wait,
    read_copies,
)

# Producers check for requests ten times a second; a reconnect takes some seconds.
ANSWER_S_MAX: Final = 30.0

Name = tuple[str, str]


def copy_start_us(
    config: ClientConfig, keyspace: str, shards: Sequence[str], tables: Collection[Name] | None
) -> int:
    """Return the time at which the newest copies of these tables began; no READ is older.

    From there on the stream contains every row: as a READ, or as a change before its READ.
    `tables` None: all tables with copies. Tables without a complete copy (none at all, one with a
    condition, one that was cancelled or failed) are copied now; if there are no copies, all tables
    are. UsageError when a producer refuses the copy, Retry when none answers.
    """
    begun_us = []
    for shard in shards:
        topics = ShardTopics(keyspace, shard)
        found = _whole(read_copies(config, topics))
        wanted = found.keys() if tables is None else tables
        missing = sorted(".".join(name) for name in set(wanted) - found.keys())
        if missing or not wanted:
            request = CopyRequest(CopyAction.START, tuple(missing))
            answer = ask_and_wait(config, topics, request, ANSWER_S_MAX)
            if answer.problems:
                raise UsageError("\n".join(f"{topics.log}: {p}" for p in answer.problems))
            found = _whole(read_copies(config, topics))
            wanted = found.keys() if tables is None else tables
        begun_us += [found[name].begun_us for name in wanted if name in found]
    if not begun_us:
        raise UsageError(f"keyspace {keyspace} has no table to copy")
    return min(begun_us)


def _whole(copies: dict[Name, TableCopy]) -> dict[Name, TableCopy]:
    ended = {CopyState.CANCELLED, CopyState.FAILED}
    return {n: c for n, c in copies.items() if not c.where and c.state not in ended}
