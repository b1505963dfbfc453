"""The servers' own regression suites, run against the decoder: `make peers`."""
