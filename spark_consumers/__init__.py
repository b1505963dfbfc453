"""The merged stream in Spark: data source, change log, and the queries over it."""
