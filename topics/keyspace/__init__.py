"""Which shards a keyspace has, now and in the past, and which rows belong to them."""
