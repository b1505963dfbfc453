"""The Spark data source: offsets, planning and reading tasks."""
