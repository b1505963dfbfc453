"""Server binaries: fetched from registries, initialised once, kept in a cache."""
