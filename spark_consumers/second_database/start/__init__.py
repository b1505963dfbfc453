"""What is looked at before a query starts."""
