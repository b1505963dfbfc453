"""Copies (snapshots): rows that a table already holds join its shard's log, chunk by chunk."""

# First of all: it decides whether compiled modules are used, here too.
import producers.decoder  # noqa: F401
