"""A provisioned keyspace on the session's broker, and writers of its shards."""

from tests.topics.written_shards import config, targets, writers

__all__ = ["config", "targets", "writers"]
