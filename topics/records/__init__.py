"""The records of shard logs, value by value: compiled by mypyc, right uncompiled too."""

from topics.compiled import GROUP
from topics.stale_build import check_build

check_build(GROUP)
