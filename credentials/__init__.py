"""Passwords and other secrets: where they come from, read whenever they are used."""
