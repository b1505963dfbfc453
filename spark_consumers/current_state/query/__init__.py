"""The streaming query that keeps the current state of all tables of a keyspace."""
