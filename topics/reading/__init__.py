"""The pure core of reading: frontier, cuts, batches, hops, merge and key range filter."""
