"""The client of a cache: reads through it, and fills in only what is proven to be fresh."""
