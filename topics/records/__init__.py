"""The records of shard logs. The modules on the hot path are compiled by mypyc."""
