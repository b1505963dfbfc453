"""Decodes shard-log records into Arrow columns; compiled by mypyc."""
