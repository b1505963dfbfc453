"""Start positions: from a word, a time, a copy or a position to a place in each shard log."""
