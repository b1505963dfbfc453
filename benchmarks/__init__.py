"""Measurements on real servers, beside the peers that do the same work: `python -m benchmarks`."""
