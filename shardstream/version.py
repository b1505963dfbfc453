"""The version, and whether the compiled hot path is in use."""

from importlib.metadata import version

from producers.decoder import COMPILED


def version_line() -> str:
    """One line: `shardstream 0.1.0 (decoder: compiled)`."""
    decoder = "compiled" if COMPILED else "plain Python; `make build` compiles it"
    return f"shardstream {version('shardstream')} (decoder: {decoder})"
