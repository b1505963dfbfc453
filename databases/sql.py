"""Queries, quoted identifiers, and literals that no quoting rule or character set can change."""

from collections.abc import Sequence
from typing import Any

import pymysql


def rows(connection: Any, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    with connection.cursor() as cursor:
        # Without values PyMySQL must not format the text: % in LIKE is no placeholder then.
        cursor.execute(query, tuple(values) or None)
        return list(cursor.fetchall())


def named_rows(connection: Any, query: str) -> list[dict[str, Any]]:
    """All rows of a query, each as a dict by column name."""
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def quoted(name: str) -> str:
    """An identifier in backquotes, safe for any name."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(text: str) -> str:
    """Text as a hexadecimal literal."""
    return f"_utf8mb4 x'{text.encode().hex()}'"
