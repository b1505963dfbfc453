"""Errors that a real MySQL or MariaDB server answers on demand."""


def error_statement(code: int) -> str:
    """Return the statement that the server answers with this error, in its own packet."""
    return f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'said'"
