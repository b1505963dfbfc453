"""Binlog events and transactions."""
