"""What fleets of shards look like from their topics."""
