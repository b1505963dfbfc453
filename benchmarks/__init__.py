"""Benchmarks on real servers, side by side with peers: `python -m benchmarks`."""
