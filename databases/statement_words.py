"""The words of a SQL statement: verbs and names, without comments and strings. Pure."""

import re
from typing import Final

_COMMENTS: Final = r"/\*(?!!|M!).*?\*/|--(?=\s|$)[^\n]*|#[^\n]*"
# What stands in `/*!80030 ... */` may be executed: only its brackets are dropped.
_BRACKETS: Final = r"/\*M?!\d*|\*/"
_NAME: Final = r"`(?P<name>(?:[^`]|``)*)`"
_WORD: Final = r"(?P<word>[\w$]+)"


def _tokens(*, backslash_escapes: bool) -> re.Pattern[str]:
    plain = r"[^{quote}\\]|\\." if backslash_escapes else r"[^{quote}]"
    single, double = (
        f"{quote}{{}}(?:{plain.format(quote=quote)}|{quote}{quote})*{{}}{quote}" for quote in "'\""
    )
    double = double.format("(?P<text>", ")")
    parts = (_COMMENTS, _BRACKETS, single.format("", ""), double, _NAME, _WORD)
    return re.compile("|".join(parts), re.DOTALL)


# With NO_BACKSLASH_ESCAPES a string ends where it goes on without.
_BY_MODE: Final = (_tokens(backslash_escapes=True), _tokens(backslash_escapes=False))


def statement_words(statement: str, *, backslash_escapes: bool = True) -> list[str]:
    """The words and unquoted names of a statement, in order.

    Text in double quotes counts as a name, which it is under ANSI_QUOTES.
    """
    pattern = _BY_MODE[0 if backslash_escapes else 1]
    words = []
    for match in pattern.finditer(statement):
        kind = match.lastgroup
        if kind == "word":
            words.append(match[kind])
        elif kind == "name":
            words.append(match[kind].replace("``", "`"))
        elif kind == "text":
            words.append(match[kind].replace('""', '"'))
    return words


def possible_names(statement: str) -> frozenset[str]:
    """All words that may be a name in the statement under any sql_mode, case folded."""
    return frozenset(
        word.casefold()
        for mode in (True, False)
        for word in statement_words(statement, backslash_escapes=mode)
    )
