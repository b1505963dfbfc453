"""The change log: every change once, in a Delta table."""
