"""Shard-log records into Arrow columns, row by row: compiled by mypyc, right uncompiled too."""
