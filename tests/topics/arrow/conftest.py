"""A provisioned keyspace on the session's broker, and writers of its shards."""

from tests.spark_consumers.fixtures import shop, spark
from tests.topics.written_shards import config, targets, writers

__all__ = ["config", "shop", "spark", "targets", "writers"]
