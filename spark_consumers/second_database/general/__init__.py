"""Any other database that SQLAlchemy has a dialect for, in standard SQL."""
