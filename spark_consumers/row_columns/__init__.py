"""Shard-log records into Arrow columns, row by row: compiled by mypyc, right uncompiled too."""

import topics.records  # noqa: F401 - which refuses a stale build of these modules, too
