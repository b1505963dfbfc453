"""The invalidator: applies the changes of a keyspace to the floors and values of a cache."""
