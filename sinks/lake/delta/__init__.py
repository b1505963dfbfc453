"""Delta tables whose rows are changed by key: merge on read, with deletion vectors."""
