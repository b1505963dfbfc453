"""Compares a second database with its sources at one position."""
