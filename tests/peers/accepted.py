"""Why a file of the suites may stop a shard: reasons that the documentation names."""

import re

# Regular expressions over the message of a halt, each with its reason.
REASONS = {
    r"logged as a statement": "a change was logged as a statement: binlog_format is not ROW",
    r"binlog_row_metadata": "a table map without full metadata",
    r"which are in no binlog": "an ALTER that moves rows which no binlog has",
    r"UUID|INET": "a type that the binlog does not tell, of a table that is gone",
    r"foreign key changes rows": "cascades that this server does not log",
    r"in the format before MySQL 5.6": "times in a format that servers of today no longer write",
    r"a value is not text": "bytes that are no text of their character set, without text_as_bytes",
    r"text in character set of collation": "a character set that no table can be declared to have",
    r"without any column": "rows of a table of generated columns alone, or MINIMAL images",
    r"XA ": "XA on MariaDB",
}


def accepted(halt: Exception) -> str | None:
    """Return the documented reason of a halt, None if there is none."""
    text = str(halt)
    return next((reason for found, reason in REASONS.items() if re.search(found, text)), None)
