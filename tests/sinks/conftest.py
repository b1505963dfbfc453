"""A Spark session, and a keyspace to read."""

from tests.spark_consumers.fixtures import shop, spark

__all__ = ["shop", "spark"]
