"""The cached shop: `shardstream demo --cache`."""
