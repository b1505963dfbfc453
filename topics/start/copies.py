"""Starts at copies (snapshots) of tables, and requests missing ones, or one behind a record."""

import uuid
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from event_token import ShardName
from event_token.errors import Retry, UsageError
from topics.kafka.client import ClientConfig, Deadline
from topics.keyspace.lineage import switched
from topics.keyspace.topology import ShardState, Topology, read_topology
from topics.names import ShardTopics
from topics.progress.copy_topic import (
    CopyAction,
    CopyFeed,
    CopyRequest,
    CopyState,
    TableCopy,
    ask,
    ask_and_wait,
    forget_answer,
    read_copies,
    withdraw,
)

# Producers check for requests ten times a second; a reconnect takes some seconds.
ANSWER_S_MAX: Final = 30.0

Name = tuple[str, str]


def copy_start_us(
    config: ClientConfig,
    keyspace: str,
    shards: Sequence[str],
    tables: Collection[Name] | None,
    *,
    requests_copies: bool = True,
) -> int:
    """Return the time at which the newest copies of these tables began; no READ is older.

    From there on the stream contains every row: as a READ, or as a change before its READ.
    `tables` None: all tables with copies. Tables without a complete copy (none at all, one with a
    condition, one that was cancelled or failed) are copied now; if there are no copies, all tables
    are; without `requests_copies` that is a UsageError. UsageError when a producer refuses the
    copy, Retry when none answers.
    """
    begun_us = []
    for shard in shards:
        topics = ShardTopics(keyspace, shard)
        found = _whole(read_copies(config, topics))
        wanted = found.keys() if tables is None else tables
        missing = sorted(".".join(name) for name in set(wanted) - found.keys())
        if missing or not wanted:
            if not requests_copies:
                raise UsageError(
                    f"{topics.log}: no copy of {', '.join(missing) or 'any table'}: start it by "
                    f"`shardstream copy start {keyspace}`, then ask again"
                )
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


_POLL_S: Final = 0.1
# Their READs are in the log, or will be.
_GOING: Final = frozenset((CopyState.COPYING, CopyState.PAUSED, CopyState.COMPLETED))


def ensure_copy_after(
    config: ClientConfig, keyspace: str, shard: str, table: tuple[str, str], at: tuple[int, int]
) -> bool:
    """Return once a copy of the whole table has begun behind a record of a shard's log.

    `table`: (database, table). `at`: seq and time in microseconds of the record. Where a reshard
    has ended the shard, its rows come from the shards that serve its key range now. Returns whether
    a copy was requested for that.

    UsageError when a producer refuses the copy, Retry when none answers or an earlier copy is
    paused.
    """
    seq, time_us = at
    topology = read_topology(config, keyspace)
    entries = () if topology is None else topology.shards
    is_retired = (shard, ShardState.RETIRED) in [(each.name, each.state) for each in entries]
    if topology is None or not is_retired:
        topics = ShardTopics(keyspace, shard)
        return _ensure(config, topics, table, lambda copy: copy.begun_seq > seq, seq)
    asked = False
    for name in topology.shards_for(ShardName.parse(shard).key_range):
        since_us = max(time_us, _serving_since_us(topology, name))
        topics = ShardTopics(keyspace, name)
        asked |= _ensure(config, topics, table, partial(_began_after, since_us), 0)
    return asked


def _began_after(since_us: int, copy: TableCopy) -> bool:
    return copy.begun_us > since_us


def _serving_since_us(topology: Topology, shard: str) -> int:
    """Return the hop time before which readers do not read a shard's log; 0: they always have."""
    times = (each.hop_time_us or 0 for each in switched(topology) if shard in each.targets)
    return max(times, default=0)


def _ensure(
    config: ClientConfig,
    topics: ShardTopics,
    table: tuple[str, str],
    is_behind: Callable[[TableCopy], bool],
    after_seq: int,
) -> bool:
    name = ".".join(table)

    def is_copied(feed: CopyFeed) -> bool:
        copy = feed.tables.get(table)
        return copy is not None and not copy.where and copy.state in _GOING and is_behind(copy)

    # Tasks that ask for the same copy at the same time share a request, and so a copy.
    request_id = uuid.uuid5(uuid.NAMESPACE_OID, f"{topics.copy} {name} {after_seq}").hex
    request = CopyRequest(CopyAction.START, (name,), id=request_id, after_seq=after_seq)
    with CopyFeed(config, topics) as feed:
        feed.read_to_end()
        if is_copied(feed):
            return False
        old = feed.answers.pop(request.id, None)
        if old is not None:  # of a query that was killed
            forget_answer(config, topics, old)
        ask(config, topics, request)
        deadline = Deadline(ANSWER_S_MAX)
        try:
            while not is_copied(feed):
                _check_answer(feed, topics, request, table)
                if deadline.passed:
                    raise Retry(
                        f"{topics.log}: no producer began to copy {name} within "
                        f"{ANSWER_S_MAX:g} s. Is the producer of the shard running?"
                    )
                feed.poll(_POLL_S)
        finally:
            withdraw(config, topics, request)
            if request.id in feed.answers:
                forget_answer(config, topics, feed.answers[request.id])
    return True


def _check_answer(
    feed: CopyFeed, topics: ShardTopics, request: CopyRequest, table: tuple[str, str]
) -> None:
    answer = feed.answers.get(request.id)
    if answer is None or not answer.problems:
        return
    problems = "; ".join(answer.problems)
    copy = feed.tables.get(table)
    if copy is not None and not copy.state.is_over:
        raise Retry(
            f"{topics.log}: {problems}, by a copy that began before: it must end, or be cancelled "
            f"(shardstream copy cancel)"
        )
    raise UsageError(f"{topics.log}: {problems}")
