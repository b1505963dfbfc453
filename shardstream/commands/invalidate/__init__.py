"""`shardstream invalidate`: the invalidator of a cache."""
