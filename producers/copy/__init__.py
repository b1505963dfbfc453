"""Rows that are in a table already join its shard's log, chunk by chunk (design.md §6)."""

# First of all: it decides whether compiled modules are used, here too.
import producers.decoder  # noqa: F401
