"""A client in steps: one call of the store, or one load, at a time."""

from collections.abc import Callable
from typing import Any

from caching.client.answers import Found
from caching.client.cache import Cache
from caching.client.steps import Step, Steps, StoreCall
from event_token import EventToken
from tests.caching.client.model import Model


class SteppedGet:
    """One get of a key by a client of its own, stopped before its first step."""

    def __init__(
        self, model: Model, key: str, *newer_than: EventToken, cache: Cache | None = None
    ) -> None:
        self.model = model
        self.key = key
        self.cache = cache or model.cache()
        self.taken: list[str] = []
        self._steps = self._get(newer_than)
        self.next_step: Step | None = next(self._steps)
        self._value: Any = None

    def until(self, name: str) -> "SteppedGet":
        """Take all steps before the first one of this name: a method of the store, or `load`."""
        while self._name() != name:
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
        self.taken.append(self._name())
        answer = self.cache._perform(
            self.next_step, lambda read, _: {self.key: self.model.load(read, self.key)}
        )
        self._go_on(lambda: self._steps.send(answer))

    def fail(self, error: Exception, *, after: bool) -> None:
        """Let the next step fail, `after` it was done or without."""
        assert isinstance(self.next_step, StoreCall)
        if after:
            self.cache._perform(self.next_step, None)
        self._go_on(lambda: self._steps.throw(error))

    def _go_on(self, resume: Callable[[], Step]) -> None:
        try:
            self.next_step = resume()
        except StopIteration as done:
            self.next_step, self._value = None, done.value

    def _name(self) -> str:
        if isinstance(self.next_step, StoreCall):
            return self.next_step.method
        return type(self.next_step).__name__.lower()

    def _get(self, newer_than: tuple[EventToken, ...]) -> Steps[Any]:
        core = self.cache._core
        [found] = yield from core.look_up((self.key,), newer_than)
        if isinstance(found, Found):
            return found.value
        value = yield from core.load(self.key, found, newer_than)
        return core.decode(self.key, value)
