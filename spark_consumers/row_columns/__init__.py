"""Decodes shard-log records into Arrow columns: compiled by mypyc, also runs uncompiled."""

import topics.records  # noqa: F401 - refuses a stale build of these modules too
