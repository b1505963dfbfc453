"""Streams a server's binlog over the replication protocol, and scans it for GTIDs."""
