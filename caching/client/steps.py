"""What a client's decisions ask for: the steps between them, which a shell carries out."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from caching.protocol.freshness import Tokens
from event_token import EventToken

ServerChoice = Literal["any", "replica", "primary"]


class StoreCall(NamedTuple):
    """Call this method of the store."""

    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class StoreCalls:
    """Call this method of the store with each of these arguments; answer with a list."""

    method: str
    arguments: Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Load:
    """Let the application read these keys from the database, and answer with `Read`.

    Its reads have to hold every change in `newer_than`, and go to servers of this kind. `prefer`:
    by shard, the server that is asked first.
    """

    keys: Sequence[str]
    newer_than: tuple[EventToken, ...]
    server: ServerChoice
    prefer: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for a number of seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """Values that the application has read, by key, and what they are proven to hold.

    A value is None where there is no such row. Without tokens nothing is proven. `replicas`: those
    that answered, by shard.
    """

    values: Mapping[str, object]
    tokens: Tokens
    replicas: Mapping[str, str]


Step = StoreCall | StoreCalls | Load | Pause
T = TypeVar("T")
# Yields steps and is sent their answers; a store's errors are thrown into it.
Steps = Generator[Step, Any, T]


def each(method: str, arguments: Sequence[tuple[Any, ...]]) -> Steps[list[Any]]:
    """Call a method of the store with each of these arguments, all at once."""
    if not arguments:
        return []
    if len(arguments) == 1:
        return [(yield StoreCall(method, arguments[0]))]
    answers: list[Any] = yield StoreCalls(method, arguments)
    return answers
