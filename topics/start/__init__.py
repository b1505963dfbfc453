"""Where a reader starts: from words, times, positions and copies to a place in each log."""
