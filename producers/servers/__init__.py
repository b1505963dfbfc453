"""The database servers of a shard: connected to, compared by GTIDs, and one chosen to follow."""
