"""The producer of a shard: reads binlogs and tables, and writes the shard log on Kafka."""
