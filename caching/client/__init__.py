"""The client of a cache: reads through it, and fills in only values that are proven to be fresh."""
