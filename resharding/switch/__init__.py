"""`switch`, `cancel` and `complete`: moving writes from the sources to the targets."""
