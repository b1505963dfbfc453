"""The watcher: tells which share of a cache's entries agrees with the database."""
