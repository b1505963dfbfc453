"""What running costs: starts, memory, and how both grow with shards and tables."""
