"""The uncertainty of clocks that the settings file states, for readers that are made without it."""

from os import PathLike
from pathlib import Path

from event_token import ClockUncertainty


def clock_from_settings(path: str | PathLike[str] | None) -> ClockUncertainty:
    """Return the section `[clock]` of a settings file, for `FreshReader` and `open_store`.

    `path` None takes the file that the variable SHARDSTREAM_CONFIG names, else ./shardstream.toml.
    UsageError lists all problems of the file.
    """
    from shardstream.settings.model import load_settings  # noqa: PLC0415 - pydantic, if wanted

    return load_settings(None if path is None else Path(path)).clock_uncertainty()
