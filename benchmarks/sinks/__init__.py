"""Benchmarks of sinks: tables of current rows, second databases, table topics."""
