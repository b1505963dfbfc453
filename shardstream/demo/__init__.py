"""`shardstream demo`: the whole system at work on real servers, and the proof that it held."""
