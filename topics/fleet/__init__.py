"""What the topics on Kafka tell of all shards: who advances, and who holds readers back."""
