"""The shard log on Kafka as its producer sees it: written in transactions, read at its end."""
