"""The exceptions of shardstream, named by what the caller must do.

    ShardstreamError
    ├── UsageError   bad input, settings, grants: mend them and start again (exit status 2)
    ├── Retry        a passing fault: the same call may be made again
    ├── Rebuild      this connection, producer or reader is spent: make a new one
    └── Halt         an operator must act: going on could lose or repeat a change (status 1)

Packages derive their own from these; none stands beside the tree. They live in the lowest package
because every other one raises them.
"""


class ShardstreamError(Exception):
    """Base of all errors that shardstream raises on purpose."""


class UsageError(ShardstreamError):
    """Raised when what was asked for, set or granted cannot work; nothing has been written."""


class Retry(ShardstreamError):  # noqa: N818 - named by what the caller must do
    """Raised on a passing fault; the same call on the same object may succeed."""


class Rebuild(ShardstreamError):  # noqa: N818 - named by what the caller must do
    """Raised when an object is spent; a new one, started from committed state, may succeed."""


class Halt(ShardstreamError):  # noqa: N818 - named by what the caller must do
    """Raised when going on could lose or repeat a change; an operator must look."""
