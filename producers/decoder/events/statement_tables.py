"""Which tables a definition is about, where that can be told for sure."""

import re
from typing import Final

from producers.decoder.events.statements import ANSI_QUOTES, NO_BACKSLASH_ESCAPES

# (text, "name" for a quoted one, "word", "sign" or "text")
_Token = tuple[str, str]
# (database, table); without a table it is about the database, or about something else in it.
_Name = tuple[str, str]

# Of a comment that is executed, only the brackets are skipped.
_SKIPPED: Final = r"(?P<skipped>\s+|/\*(?!!|M!).*?\*/|\#[^\n]*|--(?=\s|$)[^\n]*|/\*M?!\d*|\*/)"
_BACKTICK: Final = r"`(?P<name>(?:[^`]|``)+)`"
_WORD: Final = r"(?P<word>[\w$\x80-\U0010ffff]+)"
_SIGN: Final = r"(?P<sign>.)"
_DOUBLE: Final = r'"(?P<double>(?:[^"\\]|""|\\.)*)"'
_SINGLE: Final = r"(?P<text>'(?:[^'\\]|''|\\.)*')"
_DOUBLE_PLAIN: Final = r'"(?P<double>(?:[^"]|"")*)"'
_SINGLE_PLAIN: Final = r"(?P<text>'(?:[^']|'')*')"


def _pattern(*parts: str) -> re.Pattern[str]:
    return re.compile("|".join((_SKIPPED, _BACKTICK, *parts, _WORD, _SIGN)), re.DOTALL)


_ESCAPES: Final = _pattern(_DOUBLE, _SINGLE)
_ESCAPES_ANSI: Final = _pattern(_DOUBLE_PLAIN, _SINGLE)
_PLAIN: Final = _pattern(_DOUBLE_PLAIN, _SINGLE_PLAIN)
# Executed comments have words that count or do not, by the server's version.
_EXECUTED: Final = re.compile(r"/\*M?!")
_TABLES: Final = ("TABLE", "TABLES", "SEQUENCE", "VIEW")
_STORED: Final = ("PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "VIEW")
# An ALTER TABLE with one of these words may be about a second table.
_SECOND_TABLE: Final = ("RENAME", "EXCHANGE", "CONVERT")
_PARTS_OF_TABLES: Final = ("COLUMN", "INDEX", "KEY")


def named_tables(statement: bytes, database: str, sql_mode: int) -> list[_Name]:
    """Return the tables and databases that a definition creates, changes or drops.

    Those that it only reads or refers to are left out. `database`: the default one. Empty where
    they cannot be told.
    """
    text = statement.decode("utf-8", "backslashreplace")
    if _EXECUTED.search(text) is not None:
        return []
    tokens = _tokens(text, sql_mode)
    names = _Names(tokens, database).read()
    return [] if any(not name[0] for name in names) else names


def token_pattern(sql_mode: int) -> re.Pattern[str]:
    """Return what matches each token; its last group: skipped, name, double, text, word or sign."""
    if sql_mode & NO_BACKSLASH_ESCAPES:
        return _PLAIN
    return _ESCAPES_ANSI if sql_mode & ANSI_QUOTES else _ESCAPES


def _tokens(text: str, sql_mode: int) -> list[_Token]:
    tokens: list[_Token] = []
    for found in token_pattern(sql_mode).finditer(text):
        kind = found.lastgroup or ""
        part = found[kind]
        if kind == "name":
            tokens.append((part.replace("``", "`"), "name"))
        elif kind == "double":
            is_name = bool(sql_mode & ANSI_QUOTES)
            tokens.append((part.replace('""', '"'), "name" if is_name else "text"))
        elif kind != "skipped":
            tokens.append((part, kind))
    return tokens


class _Names:
    """Reads the tokens of a statement from left to right."""

    def __init__(self, tokens: list[_Token], database: str) -> None:
        self._tokens: list[_Token] = [*tokens, ("", "sign")]
        self._at: int = 0
        self._database: str = database

    def read(self) -> list[_Name]:
        """Return the names, none where they cannot be told."""
        if self._take(("TRUNCATE",)):
            self._take(("TABLE",))
            return self._list((",",))
        if self._take(("RENAME",)):
            return self._list((",", "TO")) if self._take(_TABLES) else []
        if self._take(("DROP",)):
            return self._dropped()
        if self._take(("ALTER",)):
            return self._altered()
        if self._take(("CREATE",)):
            return self._created()
        return []

    def _dropped(self) -> list[_Name]:
        self._take(("TEMPORARY",))
        if self._take(("DATABASE", "SCHEMA")):
            return self._whole_database()
        if self._take(_TABLES):
            return self._list((",",))
        if self._take(("INDEX",)):
            return self._behind_on()
        return self._in_database() if self._take(_STORED) else []

    def _altered(self) -> list[_Name]:
        while self._take(("ONLINE", "OFFLINE", "IGNORE")):
            pass
        if not self._take(("TABLE",)):
            return []
        names = self._list(())
        for i in range(self._at, len(self._tokens) - 1):
            is_second = self._is_word(i, _SECOND_TABLE)
            if is_second and not self._is_word(i + 1, _PARTS_OF_TABLES):
                return []
        return names

    def _created(self) -> list[_Name]:
        if self._take(("OR",)):
            self._take(("REPLACE",))
        self._take(("TEMPORARY",))
        if self._take(("TABLE", "SEQUENCE")):
            return self._list(())
        if self._take(("DATABASE", "SCHEMA")):
            return self._whole_database()
        self._take(("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR"))
        if self._take(("INDEX",)):
            return self._behind_on()
        for i in range(self._at, len(self._tokens)):
            # Before it stand ALGORITHM, DEFINER and SQL SECURITY; a loadable function is global.
            if self._is_word(i, _STORED):
                self._at = i + 1
                return [] if self._has_word(("SONAME",)) else self._in_database()
        return []

    def _whole_database(self) -> list[_Name]:
        self._pass_condition()
        text, kind = self._tokens[self._at]
        return [(text, "")] if kind in ("name", "word") else []

    def _in_database(self) -> list[_Name]:
        """Take the name of a routine, trigger, event or view: it stands for its database."""
        names = self._list(())
        return [(names[0][0], "")] if names else []

    def _behind_on(self) -> list[_Name]:
        """Take the table of an index."""
        while self._at < len(self._tokens) - 1:
            if self._take(("ON",)):
                return self._list(())
            self._at += 1
        return []

    def _list(self, separators: tuple[str, ...]) -> list[_Name]:
        """Take names with these words or signs between them; none if one is missing."""
        self._pass_condition()
        names: list[_Name] = []
        while True:
            name = self._name()
            if name is None:
                return []
            names.append(name)
            if not self._take(separators):
                return names

    def _name(self) -> _Name | None:
        first, kind = self._tokens[self._at]
        if kind not in ("name", "word"):
            return None
        self._at += 1
        if not self._take((".",)):
            return self._database, first
        second, kind = self._tokens[self._at]
        if kind not in ("name", "word"):
            return None
        self._at += 1
        return first, second

    def _pass_condition(self) -> None:
        if self._take(("IF",)):
            self._take(("NOT",))
            self._take(("EXISTS",))

    def _take(self, words: tuple[str, ...]) -> bool:
        """Pass one of these words or signs if it comes next."""
        is_next = self._is_word(self._at, words)
        if is_next:
            self._at += 1
        return is_next

    def _has_word(self, words: tuple[str, ...]) -> bool:
        return any(self._is_word(i, words) for i in range(len(self._tokens)))

    def _is_word(self, at: int, words: tuple[str, ...]) -> bool:
        text, kind = self._tokens[at]
        return kind in ("word", "sign") and text.upper() in words
