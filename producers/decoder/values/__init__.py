"""Column values: binlog formats in, Avro values out."""
