"""Metrics and probes of the commands that run until they are stopped."""
