"""Benchmarks of caches: clients, the invalidator, and what ordinary caches do instead."""
