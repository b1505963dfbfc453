"""Stores of caches: one behaviour on Redis, memcached and in the process's own memory."""
