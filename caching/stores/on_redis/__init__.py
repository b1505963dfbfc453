"""Caches on Redis and Valkey: one server, or a cluster with each group of buckets in one slot."""
