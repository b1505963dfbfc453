"""Splitting statements into tokens, however names are quoted and comments are placed."""

import pytest

from databases.statements import (
    ANSI_QUOTES,
    NO_BACKSLASH_ESCAPES,
    TokenKind,
    possible_names,
    readings,
    tokens_of,
)

NAME, TEXT = TokenKind.NAME, TokenKind.TEXT


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("TRUNCATE/**/user", ["TRUNCATE", "user"]),
        ("/* a */ DROP -- b\n TABLE # c\n `x``y`", ["DROP", "TABLE", "x`y"]),
        ("ALTER TABLE a$b ADD é INT", ["ALTER", "TABLE", "a$b", "ADD", "é", "INT"]),
        ("DROP TABLE /*!80000 IF EXISTS */ t", ["DROP", "TABLE", "IF", "EXISTS", "t"]),
        ("DROP TABLE /*M!100000 t */", ["DROP", "TABLE", "t"]),
        ("""COMMENT 'it''s `x` \\' y', "a""b" """, ["COMMENT", 'a"b']),
        ("SELECT 1--1", ["SELECT", "1", "1"]),
        ("SELECT 1--\x01 DROP\n, 2 --", ["SELECT", "1", "2"]),
        ("'open", ["open"]),
        ("", []),
    ],
)
def test_words_of_a_statement(statement: str, words: list[str]) -> None:
    """Comments and strings disappear, names lose their quotes, executable comments stay."""
    assert [token.text for token in readings(statement)[0] if token.can_name] == words


@pytest.mark.parametrize(
    ("statement", "mode", "quoted"),
    [
        (r'"a\"b"', 0, [(r"a\"b", TEXT)]),
        (r'"a\" "b"', ANSI_QUOTES, [("a\\", NAME), ("b", NAME)]),
        (r"'a\'b'", ANSI_QUOTES, [(r"'a\'b'", TEXT)]),
        (r"'a\' 'b'", NO_BACKSLASH_ESCAPES, [(r"'a\'", TEXT), ("'b'", TEXT)]),
        ('"a""b"', NO_BACKSLASH_ESCAPES, [('a"b', TEXT)]),
        ('"a""b"', ANSI_QUOTES | NO_BACKSLASH_ESCAPES, [('a"b', NAME)]),
    ],
)
def test_quotes_end_as_the_sql_mode_says(
    statement: str, mode: int, quoted: list[tuple[str, TokenKind]]
) -> None:
    """Double quotes hold a name or a text, and a backslash escapes a quote or does not."""
    assert [(token.text, token.kind) for token in tokens_of(statement, mode)] == quoted


def test_names_count_under_every_sql_mode() -> None:
    """Whether a backslash escapes a quote is unknown, so both readings count."""
    found = possible_names("ALTER TABLE t COMMENT '\\', RENAME TO Other -- '")

    assert {"t", "other"} <= found


def test_a_reading_with_an_open_quote_is_no_reading() -> None:
    """Where only one sql_mode gives every quote an end, the statement ran under that one."""
    assert len(readings(r"COMMENT 'it\'s', ADD a INT")) == 1
    [tokens] = readings(r"COMMENT 'c:\', RENAME TO b COMMENT 'y'")
    assert [token.text for token in tokens if token.can_name] == [
        "COMMENT",
        "RENAME",
        "TO",
        "b",
        "COMMENT",
    ]
