"""The exceptions of shardstream, named by what the caller must do.

    ShardstreamError
    ├── UsageError   wrong input, settings or grants: fix them and start again (exit status 2)
    ├── Retry        a transient fault: repeat the same call
    ├── Rebuild      this connection, producer or reader is unusable: open a new one
    └── Halt         continuing could lose or repeat a change: an operator must act (status 1)
        └── TakenOver    another process does this work: do not start this one again (status 3)

Every package derives its errors from these four, in its own `errors.py`: `topics.errors`,
`topics.kafka.errors`, `credentials.errors`, `databases.errors`, `producers.errors`,
`producers.decoder.errors`, `producers.copy.definition`, `producers.filters.rules`,
`resharding.errors`, `caching.errors`, `sinks.errors`. Only the errors of parsing a value stand
beside its class.
"""


class ShardstreamError(Exception):
    """Base of all errors that shardstream raises."""


class UsageError(ShardstreamError):
    """Raised on input, settings, grants or servers that cannot work until the caller fixes them."""


class Retry(ShardstreamError):  # noqa: N818 - named by what the caller must do
    """Raised on a transient fault; the same call on the same object may succeed."""


class Rebuild(ShardstreamError):  # noqa: N818 - named by what the caller must do
    """Raised when an object is unusable; a new one, opened at committed state, may succeed."""


class Halt(ShardstreamError):  # noqa: N818 - named by what the caller must do
    """Raised when continuing could lose or repeat a change; an operator must act."""


class TakenOver(Halt):
    """Raised when another process does the same work; restarted, the two would take turns."""
