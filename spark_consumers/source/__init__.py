"""The Spark data source: its options, the planning of batches, and the tasks that read them."""
