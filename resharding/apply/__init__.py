"""Filtered replication: applies the changes of the source shards to one target."""
