"""Table topics: the merged stream as one Kafka topic per table, in the format of Debezium."""
