"""Rows: images, filters, and the records made of them."""
