"""The change log: a Delta table that holds every change exactly once."""
