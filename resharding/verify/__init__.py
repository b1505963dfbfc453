"""Row-by-row comparison of a target with its sources."""
