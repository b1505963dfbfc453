"""From ranges of shard logs to Arrow record batches, by a plan per table version.

Each record goes through the compiled `topics.arrow.columns`. Needs neither Spark nor a clock.
"""
