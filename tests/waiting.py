"""How tests wait for what happens in other threads, processes and servers."""

import time
from collections.abc import Callable
from typing import Protocol

# Seven runs of tests may share two cores, and beside twenty containers a JVM starts in a minute. A
# wait ends as soon as its condition holds: only what never happens takes so long.
WAIT_S = 600.0
POLL_S = 0.05
# Where a look opens connections, which takes what is waited for as much time as the one who looks.
COSTLY_POLL_S = 0.15


class Ending(Protocol):
    """A process, as `subprocess.Popen` shows it."""

    def poll(self) -> int | None:
        """Return its exit status once it has ended."""


def wait_for(
    what: str,
    condition: Callable[[], object],
    said: Callable[[], object] = lambda: "",
    process: Ending | None = None,
    poll_s: float = POLL_S,
) -> None:
    """Poll until the condition holds; fail with what did not happen, and what was said instead.

    A `process` that has ended without it will not make it come true: that fails at once.
    """
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        # Asked before the last look at the condition: what it did before it ended counts.
        if process is not None and (status := process.poll()) is not None:
            assert condition(), f"ended with status {status}: not {what} {said()}"
            return
        assert time.monotonic() < deadline_s, f"not within {WAIT_S:.0f} s: {what} {said()}"
        time.sleep(poll_s)
