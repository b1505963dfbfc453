"""Reads that say how fresh they are: rows with the token of what they are proven to hold."""
