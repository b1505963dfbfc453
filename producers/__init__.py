"""MySQL and MariaDB to the shard log: wire, decoder, publisher."""
