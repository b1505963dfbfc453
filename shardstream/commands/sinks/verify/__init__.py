"""`shardstream database verify`: reads the sources for a comparison."""
