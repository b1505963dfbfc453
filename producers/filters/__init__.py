"""Filter rules: which tables, columns and rows reach the log, and which values are masked."""
