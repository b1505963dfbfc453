"""Engines of the sinks, without Spark.

Each runs in a Spark task or behind `Subscriber.batches()`.
"""
