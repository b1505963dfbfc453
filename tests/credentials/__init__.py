"""Tests of `credentials`."""
