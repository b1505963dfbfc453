"""Real servers that are made to behave like those of a managed service."""
