"""`shardstream reshard`: split and merge shards online."""
