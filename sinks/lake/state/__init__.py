"""The current state of all tables of a keyspace: present rows, and versions of rows."""
