"""Checks of servers, grants and declared columns before anything starts."""
