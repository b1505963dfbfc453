"""What `shardstream serve --streams` gives over HTTP: keyspaces for any language."""
