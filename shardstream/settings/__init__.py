"""The settings file, and what producers, readers and reshards take from it."""
