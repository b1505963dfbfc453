"""Named readers: what they report of their positions, and who has not passed a shard."""
