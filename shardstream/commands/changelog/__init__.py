"""`shardstream changelog`: runs, cleans up and checks a change log."""
