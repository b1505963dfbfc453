"""What lies on Kafka: names, schemas, codec, provisioning, topology, progress; and reading it."""
