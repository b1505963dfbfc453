"""From the bytes of shard logs to Arrow record batches. Needs neither Spark nor a clock."""
