"""Kafka clients, their errors, and the topics with the settings that they need."""
