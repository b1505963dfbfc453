"""Calls on their way to several servers, and what the servers' replies mean; without I/O."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from caching.errors import StoreError, StoreFull, StoreUnreachable
from caching.stores.on_redis.routes import Address, Routes
from caching.stores.on_redis.scripts import Call, Word

# Scripts unknown, group moved, group moved again: more is a cluster that does not come to rest.
SENDS_MAX = 5
# How a script's error says it; a plain command's has a class of its own.
OUT_OF_MEMORY = "OOM command not allowed"
# Replies that a server keeps for one send until they are read: some MB at most.
CALLS_MAX = 1_000


@dataclass
class Exchange:
    """What of some calls is still to be sent, and the replies so far."""

    calls: Sequence[Call]
    replies: list[Any] = field(init=False)
    words: list[tuple[Word, ...]] = field(init=False)
    waiting: set[int] = field(init=False)
    has_moved: bool = False

    def __post_init__(self) -> None:
        """Everything waits."""
        self.replies = [None] * len(self.calls)
        self.words = [call.words for call in self.calls]
        self.waiting = set(range(len(self.calls)))

    def by_address(self, routes: Routes) -> dict[Address, list[int]]:
        """Return the numbers of the calls that wait, by the servers that they go to."""
        split: dict[Address, list[int]] = {}
        for number in sorted(self.waiting):
            split.setdefault(routes.address[self.calls[number].group], []).append(number)
        return split

    def take(self, address: Address, numbers: Sequence[int], replies: Iterable[Any]) -> None:
        """Take a server's replies. Raises StoreError on an error reply.

        A script that the server does not know waits again, with its source, and so does a call for
        a group that has moved.
        """
        for number, reply in zip(numbers, replies, strict=True):
            source = self.calls[number].source
            if isinstance(reply, NoScriptError) and source is not None:
                self.words[number] = ("EVAL", source, *self.words[number][2:])
            elif isinstance(reply, MovedError):
                self.has_moved = True
            elif isinstance(reply, ResponseError):
                raise explained(address, reply)
            else:
                self.replies[number] = reply
                self.waiting.remove(number)


def explained(address: Address, error: ResponseError) -> StoreError:
    """Return the error to raise for a server's error reply."""
    message = f"cache server {address}: {error}"
    if isinstance(error, OutOfMemoryError) or OUT_OF_MEMORY in str(error):
        return StoreFull(str(address), message)
    if isinstance(error, AskError | TryAgainError | ClusterDownError | ReadOnlyError):
        return StoreUnreachable(str(address), message)
    return StoreError(str(address), message)


def slots_of(address: Address, replies: Sequence[Any]) -> list[Any]:
    """Return the reply to CLUSTER SLOTS; StoreError on an error reply."""
    [reply] = replies
    if isinstance(reply, ResponseError):
        raise explained(address, reply)
    return list(reply)


def unsettled(routes: Routes) -> StoreUnreachable:
    """Return the error for calls that no server takes, each naming another one."""
    server = str(routes.address[0])
    return StoreUnreachable(server, f"the Redis cluster of {server} is moving its slots")
