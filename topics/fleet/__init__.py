"""The state of all shards, from their topics: who advances, and who holds readers back."""
