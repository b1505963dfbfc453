"""The Docker Compose stack on a real Docker engine: `make test-ecosystem`."""
