"""The state of one stream: its position, its open transaction, its tables."""
