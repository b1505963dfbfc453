"""Table versions: table map events, column plans and keyspace ids."""
