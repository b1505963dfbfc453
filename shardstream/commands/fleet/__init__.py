"""`shardstream status`: the state of all shards, as their topics tell it."""
