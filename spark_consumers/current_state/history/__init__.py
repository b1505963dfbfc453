"""Every version of a table's rows, and from when to when it was visible."""
