"""Filter rules: which tables, columns and rows reach the log, and what is masked in them. Pure."""
