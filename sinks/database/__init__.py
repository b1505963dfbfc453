"""The second database: a copy of the tables in another database, which follows the stream."""
