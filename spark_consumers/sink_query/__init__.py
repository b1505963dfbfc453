"""What the streaming queries of all sinks share: rows routed by key, the loop, the checkpoint."""
