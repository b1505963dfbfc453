"""The tokens of MySQL's and MariaDB's statements, as the sql_mode that they ran under reads them.

Two flags of it decide where quoted text ends: with NO_BACKSLASH_ESCAPES a backslash escapes no
quote; with ANSI_QUOTES double quotes hold a name, in which a backslash escapes nothing either.
The records of a log do not have the sql_mode, so readers of them take every reading: `readings`.

The words of a comment that servers may execute, `/*!80030 ... */` or `/*M! ... */`, are tokens like
any other; those of other comments are none.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final

# Bits of a query event's sql_mode.
ANSI_QUOTES: Final = 1 << 2
NO_BACKSLASH_ESCAPES: Final = 1 << 20

# `--` begins a comment before white space and control characters only: `1--1` is 2.
_SKIPPED: Final = (
    r"(?P<skipped>\s+|/\*(?!!|M!).*?\*/|\#[^\n]*|--(?=[\s\x00-\x1f\x7f]|$)[^\n]*|/\*M?!\d*|\*/)"
)
_BACKTICK: Final = r"`(?P<name>(?:[^`]|``)+)`"
_WORD: Final = r"(?P<word>[\w$\x80-\U0010ffff]+)"
_SIGN: Final = r"(?P<sign>.)"
_DOUBLE: Final = r'"(?P<double>(?:[^"\\]|""|\\.)*)"'
_SINGLE: Final = r"(?P<text>'(?:[^'\\]|''|\\.)*')"
_DOUBLE_PLAIN: Final = r'"(?P<double>(?:[^"]|"")*)"'
_SINGLE_PLAIN: Final = r"(?P<text>'(?:[^']|'')*')"


def _pattern(*quoted: str) -> re.Pattern[str]:
    return re.compile("|".join((_SKIPPED, _BACKTICK, *quoted, _WORD, _SIGN)), re.DOTALL)


_ESCAPES: Final = _pattern(_DOUBLE, _SINGLE)
_ESCAPES_ANSI: Final = _pattern(_DOUBLE_PLAIN, _SINGLE)
_PLAIN: Final = _pattern(_DOUBLE_PLAIN, _SINGLE_PLAIN)


class TokenKind(Enum):
    """What a token is."""

    WORD = "word"  # a keyword or an unquoted name
    NAME = "name"  # a quoted name
    TEXT = "text"  # a string, with its quotes
    SIGN = "sign"  # any other character; a quote if nothing ends what it begins


WORD: Final = TokenKind.WORD
NAME: Final = TokenKind.NAME
TEXT: Final = TokenKind.TEXT
SIGN: Final = TokenKind.SIGN


class Token:
    """A token, and where it stands in its statement; `text` of a name is without its quotes.

    `word`: a keyword, an unquoted name or a sign in upper case, "" for anything else.
    """

    __slots__ = ("begin", "end", "kind", "text", "word")

    def __init__(self, text: str, kind: TokenKind, begin: int = 0, end: int = 0) -> None:
        self.text: str = text
        self.kind: TokenKind = kind
        self.begin: int = begin
        self.end: int = end
        self.word: str = text.upper() if kind is WORD or kind is SIGN else ""

    def __eq__(self, other: object) -> bool:
        """Whether both are the same text at the same place."""
        return (
            isinstance(other, Token)
            and self.text == other.text
            and self.kind is other.kind
            and self.begin == other.begin
            and self.end == other.end
        )

    def __hash__(self) -> int:
        """Agree with equality."""
        return hash((self.text, self.begin, self.end))

    def __repr__(self) -> str:
        """As failed tests show it."""
        return f"Token({self.text!r}, {self.kind.name}, {self.begin}, {self.end})"

    def is_word(self, *words: str) -> bool:
        """Whether it is one of these keywords, in upper case, or signs."""
        return self.word in words

    @property
    def can_name(self) -> bool:
        """Whether it can be the name of something."""
        return self.kind is WORD or self.kind is NAME

    @property
    def is_open_quote(self) -> bool:
        """Whether it is a quote that no other one ends: the sql_mode is not the statement's."""
        return self.kind is SIGN and self.text in "'\"`"


def tokens_of(statement: str, sql_mode: int) -> Iterator[Token]:
    """Yield the tokens of a statement that ran under an sql_mode."""
    double = NAME if sql_mode & ANSI_QUOTES else TEXT
    if sql_mode & NO_BACKSLASH_ESCAPES:
        return _scan(_PLAIN, statement, double)
    return _scan(_ESCAPES_ANSI if sql_mode & ANSI_QUOTES else _ESCAPES, statement, double)


def readings(statement: str) -> list[list[Token]]:
    """Every way to read a statement whose sql_mode is unknown; that of the default mode is first.

    What is in double quotes counts as a name. A reading in which a quote has no end is left out,
    unless there is no other.
    """
    patterns = (_ESCAPES, _ESCAPES_ANSI, _PLAIN) if "\\" in statement else (_ESCAPES,)
    found: list[list[Token]] = []
    for pattern in patterns:
        tokens = list(_scan(pattern, statement, NAME))
        if tokens not in found:
            found.append(tokens)
    whole = [tokens for tokens in found if not any(token.is_open_quote for token in tokens)]
    return whole or found


def possible_names(statement: str) -> frozenset[str]:
    """All words that may be a name in a statement of unknown sql_mode, case folded."""
    return frozenset(
        token.text.casefold()
        for tokens in readings(statement)
        for token in tokens
        if token.can_name
    )


def _scan(pattern: re.Pattern[str], statement: str, double: TokenKind) -> Iterator[Token]:
    for found in pattern.finditer(statement):
        kind = found.lastgroup
        if kind == "skipped":
            continue
        begin, end = found.span()
        if kind == "word":
            yield Token(statement[begin:end], WORD, begin, end)
        elif kind == "sign":
            yield Token(statement[begin:end], SIGN, begin, end)
        elif kind == "text":
            yield Token(statement[begin:end], TEXT, begin, end)
        elif kind == "name":
            yield Token(statement[begin + 1 : end - 1].replace("``", "`"), NAME, begin, end)
        else:
            yield Token(statement[begin + 1 : end - 1].replace('""', '"'), double, begin, end)


def without_setting(tokens: list[Token]) -> list[Token]:
    """Of MariaDB's SET STATEMENT ... FOR, the tokens after it; of others, all."""
    if len(tokens) < 2 or not (tokens[0].is_word("SET") and tokens[1].is_word("STATEMENT")):
        return tokens
    ends = (i for i, token in enumerate(tokens) if token.is_word("FOR"))
    return tokens[next(ends, len(tokens)) + 1 :]


class TokenReader:
    """Reads tokens from left to right; `database` is that of names without one."""

    def __init__(self, tokens: list[Token], database: str = "") -> None:
        self.tokens = tokens
        self.at = 0
        self._database = database

    def comes(self, *words: str) -> bool:
        """Whether one of these words or signs comes next."""
        return self.at < len(self.tokens) and self.tokens[self.at].is_word(*words)

    def take(self, *words: str) -> bool:
        """Skip one of these words or signs if it comes next."""
        is_next = self.comes(*words)
        self.at += is_next
        return is_next

    def take_all(self, *words: str) -> None:
        """Skip all of these words that come next."""
        while self.take(*words):
            pass

    def next(self) -> Token | None:
        """Take the next token; None at the end."""
        if self.at >= len(self.tokens):
            return None
        self.at += 1
        return self.tokens[self.at - 1]

    def name(self) -> str:
        """Take a name; "" if none comes next."""
        if self.at >= len(self.tokens) or not self.tokens[self.at].can_name:
            return ""
        self.at += 1
        return self.tokens[self.at - 1].text

    def table(self) -> tuple[str, str]:
        """Take the name of a table, with or without its database; the table is "" for none."""
        first = self.name()
        if first and self.take("."):
            return first, self.name()
        return self._database, first

    def tables(self, *separators: str) -> list[tuple[str, str]]:
        """Take names of tables with one of these words or signs between them."""
        found = [self.table()]
        while self.take(*separators):
            found.append(self.table())
        return found

    def clauses(self) -> list[list[Token]]:
        """Take all that is left, divided at commas that are in no parentheses."""
        found: list[list[Token]] = [[]]
        depth = 0
        while (token := self.next()) is not None:
            depth += token.is_word("(") - token.is_word(")")
            if depth == 0 and token.is_word(","):
                found.append([])
            else:
                found[-1].append(token)
        return found
