"""Refuses a stale build of the decoder, before the first of its modules is loaded."""

from producers.compiled import COMPILED, GROUP
from topics.stale_build import StaleBuild, check_build

__all__ = ["COMPILED", "StaleBuild"]

check_build(GROUP)
