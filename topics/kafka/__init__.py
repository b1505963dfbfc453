"""Kafka clients, the mapping of their errors, and the topics with their required settings."""
