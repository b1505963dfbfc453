"""Caches on memcached: each server a node of its own, none of which another one replaces."""
