"""The pure reading core: frontier, cut, batches, merge, key-range filter (design.md §7)."""
