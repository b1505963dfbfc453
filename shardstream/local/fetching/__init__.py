"""What local servers are made of: fetched from registries, initialised once, kept in a cache."""
