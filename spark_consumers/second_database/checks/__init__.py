"""What is looked at after a statement, because the database itself reports no error."""
