"""The database servers of a shard: connecting, comparing, choosing one to follow."""
