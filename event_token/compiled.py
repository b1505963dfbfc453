"""Whether this process runs the compiled hot path or its plain Python sources."""

from typing import Final

from event_token import running_set

# One build compiles all modules or none, so any of them answers for the rest.
IS_COMPILED: Final = not running_set.__file__.endswith(".py")

PLAIN_WARNING: Final = (
    "shardstream runs as plain Python, many times slower than compiled: install a wheel for this "
    "platform, or reinstall where a C compiler is available"
)
