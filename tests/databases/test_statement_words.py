"""Splitting statements into words, however names are quoted and comments are placed."""

import pytest

from databases.statement_words import possible_names, statement_words


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
        ("'open", ["open"]),
        ("", []),
    ],
)
def test_words_of_a_statement(statement: str, words: list[str]) -> None:
    """Comments and strings disappear, names lose their quotes, executable comments stay."""
    assert statement_words(statement) == words


def test_names_count_under_every_sql_mode() -> None:
    """Whether a backslash escapes a quote is unknown, so both readings count."""
    found = possible_names("ALTER TABLE t COMMENT '\\', RENAME TO Other -- '")

    assert {"t", "other"} <= found
