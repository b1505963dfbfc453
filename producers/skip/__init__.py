"""The operator's way past transactions that stop a shard: SKIP records in its log."""
