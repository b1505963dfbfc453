"""Commands that run a sink of the merged stream as a Spark query."""
