"""Code that threads and asyncio share: generators that yield every call that waits."""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Call(NamedTuple):
    """A call that waits. In code for asyncio its function returns an awaitable."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


# Yields calls and is sent their results; their errors are thrown into it.
Steps = Generator[Call, Any, T]


def run_steps(steps: Steps[T]) -> T:
    """Carry out all steps in this thread; return their result."""
    try:
        call = next(steps)
        while True:
            try:
                result = call.function(*call.arguments)
            except Exception as error:  # noqa: BLE001 - the steps handle it, or raise it again
                call = steps.throw(error)
            else:
                call = steps.send(result)
    except StopIteration as done:
        found: T = done.value
        return found
    finally:
        steps.close()  # after an interrupt they have not ended


async def run_steps_async(steps: Steps[T]) -> T:
    """Carry out all steps in this task; return their result."""
    try:
        call = next(steps)
        while True:
            try:
                result = await call.function(*call.arguments)
            except Exception as error:  # noqa: BLE001 - the steps handle it, or raise it again
                call = steps.throw(error)
            else:
                call = steps.send(result)
    except StopIteration as done:
        found: T = done.value
        return found
    finally:
        steps.close()
