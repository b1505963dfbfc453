"""The shards of a keyspace, now and in the past, and the vindexes that place rows on them."""
