"""What `shardstream serve` gives over HTTP: the live page, its events, and probes."""
