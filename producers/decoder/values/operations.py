"""How the bytes of a column's value are read and written: one operation per kind of value.

Small numbers, grouped so that the writers can tell groups apart by a comparison.
"""

from typing import Final

ABSENT: Final = 0  # the row image has no such column
I8: Final = 1
U8: Final = 2
I16: Final = 3
U16: Final = 4
I24: Final = 5
U24: Final = 6
I32: Final = 7
U32: Final = 8
I64: Final = 9
U64: Final = 10
VARCHAR: Final = 11  # one or two bytes of length
BLOB: Final = 12  # one to four bytes of length
FIXED_BINARY: Final = 13  # BINARY(n): the server strips trailing zeros that belong to the value
DECIMAL: Final = 14
BIG_DECIMAL: Final = 15  # more than 18 digits
FLOAT: Final = 16
DOUBLE: Final = 17
DATE: Final = 18
TIME: Final = 19
DATETIME: Final = 20
TIMESTAMP: Final = 21
YEAR: Final = 22
ENUM: Final = 23
SET: Final = 24
BIT: Final = 25
BIT64: Final = 26
JSON: Final = 27
COMPRESSED: Final = 28  # MariaDB's COMPRESSED text and bytes, one to four bytes of length
# MariaDB's types that a binlog shows as BINARY. They come last, which comparisons rely on.
UUID: Final = 29
INET4: Final = 30
INET6: Final = 31

# From the one to the other, values follow their length, in binlogs as in results; those of JSON and
# of all later operations do in binlogs.
LENGTH_FIRST: Final = VARCHAR
LENGTH_LAST: Final = FIXED_BINARY
