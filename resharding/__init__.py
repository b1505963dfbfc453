"""Resharding: filtered replication to the target shards, verify, switch and journal."""
