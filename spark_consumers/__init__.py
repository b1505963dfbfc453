"""The merged stream in Spark: a data source, a change log in Delta, and its state.

The names below are imported on first use, so that the parts that need no Spark do not load it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_consumers.change_log.check import check_changelog
    from spark_consumers.change_log.replay import replay_changelog
    from spark_consumers.change_log.run import run_changelog
    from spark_consumers.change_log.state import state_as_of
    from spark_consumers.session import build_session, register

__all__ = [
    "register",
    "build_session",
    "run_changelog",
    "check_changelog",
    "replay_changelog",
    "state_as_of",
]

_HOMES = {
    "register": "spark_consumers.session",
    "build_session": "spark_consumers.session",
    "run_changelog": "spark_consumers.change_log.run",
    "check_changelog": "spark_consumers.change_log.check",
    "replay_changelog": "spark_consumers.change_log.replay",
    "state_as_of": "spark_consumers.change_log.state",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(_HOMES[name]), name)
