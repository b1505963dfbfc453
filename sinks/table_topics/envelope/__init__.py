"""Changes of a table version as Kafka messages in the format of Debezium's MySQL connector. Pure.

Everything works on Arrow columns: a batch of decoded rows in, a batch of messages out. Nothing is
done row by row in Python except for values that Arrow cannot convert.
"""
