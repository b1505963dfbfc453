"""The shop of the Docker Compose stack: its traffic, its cached pages and the split of a shard."""
