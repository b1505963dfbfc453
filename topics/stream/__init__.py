"""Reading the merged stream: start positions, log readers and `Subscriber`."""
