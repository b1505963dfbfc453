"""`shardstream demo`: the whole system on real servers, and a proof that nothing was lost."""
