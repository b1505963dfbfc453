"""Schema ids: registration and lookup, in a Kafka topic or a Confluent registry."""
