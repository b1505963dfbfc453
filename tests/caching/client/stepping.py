"""A client in steps: one call of the store, or one load, at a time."""

from typing import Any, NamedTuple

from caching.client.cache import CacheClient
from caching.client.core import FoundValue
from caching.client.reads import Read
from caching.steps import Call, Steps
from event_token import EventToken
from tests.caching.client.model import Model


class NamedStep(NamedTuple):
    """One operation: a method of the store, or `load`."""

    name: str
    arguments: tuple[Any, ...]


class Lost(NamedTuple):
    """Sent to an operation: it fails, after it was done or without."""

    error: Exception
    is_done: bool


class _SteppingStore:
    """A store that stops before each of its operations."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in {"layout", "nodes", "is_async", "node_of"}:
            return found

        def stepped(*arguments: Any) -> Any:
            lost = yield NamedStep(name, arguments)
            if lost is None:
                return (yield from found(*arguments))
            if lost.is_done:
                yield from found(*arguments)
            raise lost.error

        return stepped


class SteppedGet:
    """One get of a key by a client of its own, stopped before its first step."""

    def __init__(
        self, model: Model, key: str, *newer_than: EventToken, cache: CacheClient | None = None
    ) -> None:
        self.model = model
        self.key = key
        self.cache = cache or model.cache()
        self.taken: list[str] = []
        self.next_step: NamedStep | None = None
        self._value: Any = None
        self._core = self.cache._core
        self._steps = self._get(newer_than)
        self._go_on(None)

    def until(self, name: str) -> "SteppedGet":
        """Take all steps before the first one of this name: a method of the store, or `load`."""
        while self.next_step is None or self.next_step.name != name:
            assert self.next_step is not None, f"no step {name}, only {self.taken}"
            self.step()
        return self

    def through(self, name: str) -> "SteppedGet":
        """Take all steps up to this one, and this one."""
        self.until(name)
        self.step()
        return self

    def finish(self) -> Any:
        """Take all steps; the value that the client gets."""
        while self.next_step is not None:
            self.step()
        return self._value

    @property
    def is_done(self) -> bool:
        """Whether the client has its value."""
        return self.next_step is None

    def step(self) -> None:
        """Take one step."""
        assert self.next_step is not None
        self.taken.append(self.next_step.name)
        self._go_on(None)

    def fail(self, error: Exception, *, after: bool) -> None:
        """Let the next step, of the store, fail, `after` it was done or without."""
        self._go_on(Lost(error, after))

    def _go_on(self, answer: Lost | None) -> None:
        """Carry out calls up to the next step."""
        store, self._core._store = self._core._store, _SteppingStore(self._core._store)  # type: ignore[assignment]
        try:
            step: Any = self._steps.send(answer)
            while isinstance(step, Call):
                try:
                    result = step.function(*step.arguments)
                except Exception as error:  # noqa: BLE001 - the client handles it
                    step = self._steps.throw(error)
                else:
                    step = self._steps.send(result)
            self.next_step = step
        except StopIteration as done:
            self.next_step, self._value = None, done.value
        finally:
            self._core._store = store

    def _get(self, newer_than: tuple[EventToken, ...]) -> Steps[Any]:
        [found] = yield from self._core.look_up((self.key,), newer_than)
        if isinstance(found, FoundValue):
            return found.value
        value = yield from self._core.load(self.key, found, newer_than, self._load)
        return self._core.decode(self.key, value)

    def _load(self, read: Read) -> Steps[Any]:
        yield NamedStep("load", ())  # type: ignore[misc]
        return {self.key: read.run_loader(self.model.load, self.key)}
