"""Where a session starts: behind the shard log's tail, or at a place in the binlogs."""
