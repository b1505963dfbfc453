"""The present rows of tables, kept in Delta tables: merge on read, with deletion vectors."""
