"""The version, and whether the compiled hot path is in use."""

from importlib.metadata import version

from event_token.compiled import IS_COMPILED


def version_line() -> str:
    """One line: `shardstream 0.1.0 (compiled)`."""
    build = "compiled" if IS_COMPILED else "plain Python: many times slower than compiled"
    return f"shardstream {version('shardstream')} ({build})"
