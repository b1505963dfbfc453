"""`shardstream copy`: copy existing rows into the stream (snapshot, backfill)."""
