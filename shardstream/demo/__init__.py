"""`shardstream demo`: the whole system at work on real servers, and the proof that nothing went wrong."""
