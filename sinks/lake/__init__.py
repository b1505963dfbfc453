"""Tables of a lake, in Delta: all changes, present rows, and versions of rows."""
