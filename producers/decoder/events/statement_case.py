"""Names in definitions on servers that compare table names without case."""

import re
from typing import Final

from producers.decoder.events.statement_tables import token_pattern

# These have nothing but names and the reserved words below, which are names only after a stop.
_NAMES_ALONE: Final = ("TRUNCATE", "DROP", "RENAME")
_RESERVED: Final = ("TABLE", "DATABASE", "SCHEMA", "IF", "EXISTS", "TO")
_NAMED_AFTER: Final = ("TABLE", "TABLES", "DATABASE", "SCHEMA")
_BEFORE_NAME: Final = ("IF", "NOT", "EXISTS", "TO", "AS", "=")
# What follows RENAME in an ALTER where the table keeps its name.
_NOT_A_TABLE: Final = ("COLUMN", "INDEX", "KEY")


def lower_names(statement: bytes, sql_mode: int) -> bytes:
    """Return a definition, in UTF-8, with the names that it concerns in lower case.

    These are the tables and databases that it creates, changes or drops, which a server with
    lower_case_table_names=1 has in lower case, as row events do.
    """
    text = statement.decode("utf-8")
    tokens = [
        found for found in token_pattern(sql_mode).finditer(text) if found.lastgroup != "skipped"
    ]
    parts: list[str] = []
    end = 0
    for i in sorted(_concerned(tokens)):
        parts.append(text[end : tokens[i].start()])
        parts.append(tokens[i][0].lower())
        end = tokens[i].end()
    return ("".join(parts) + text[end:]).encode("utf-8")


def _concerned(tokens: list[re.Match[str]]) -> list[int]:
    """Return the tokens that are to be in lower case."""
    at = 0
    if _is(tokens, 0, ("SET",)) and _is(tokens, 1, ("STATEMENT",)):
        while at < len(tokens) and not _is(tokens, at, ("FOR",)):
            at += 1
        at += 1
    if _is(tokens, at, _NAMES_ALONE):
        return [
            i
            for i in range(at + 1, len(tokens))
            if _is_name(tokens, i) and (_is(tokens, i - 1, (".",)) or not _is(tokens, i, _RESERVED))
        ]
    if _is(tokens, at, ("ALTER",)):
        return _of_alter(tokens, at)
    if _is(tokens, at, ("CREATE",)):
        for i in range(at, len(tokens)):
            if _is(tokens, i, _NAMED_AFTER):
                return _name_behind(tokens, i)
    return []


def _of_alter(tokens: list[re.Match[str]], at: int) -> list[int]:
    found: list[int] = []
    for i in range(at, len(tokens)):
        is_rename = _is(tokens, i, ("RENAME",)) and not _is(tokens, i + 1, _NOT_A_TABLE)
        if is_rename or _is(tokens, i, _NAMED_AFTER):
            found.extend(_name_behind(tokens, i))
    return found


def _name_behind(tokens: list[re.Match[str]], at: int) -> list[int]:
    """Return the tokens of a name, with or without its database, that follow a word."""
    at += 1
    while _is(tokens, at, _BEFORE_NAME):
        at += 1
    if _is(tokens, at + 1, (".",)):
        return [i for i in (at, at + 2) if _is_name(tokens, i)]
    return [at] if _is_name(tokens, at) else []


def _is_name(tokens: list[re.Match[str]], at: int) -> bool:
    return at < len(tokens) and tokens[at].lastgroup in ("name", "double", "word")


def _is(tokens: list[re.Match[str]], at: int, words: tuple[str, ...]) -> bool:
    if at >= len(tokens) or tokens[at].lastgroup not in ("word", "sign"):
        return False
    return tokens[at][0].upper() in words
