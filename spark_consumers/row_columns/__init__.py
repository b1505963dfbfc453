"""Shard-log records into Arrow columns, row by row: compiled by mypyc, right uncompiled too."""

from topics.compiled import COMPILED, GROUP
from topics.stale_build import StaleBuild, check_build

__all__ = ["COMPILED", "StaleBuild"]

check_build(GROUP)
