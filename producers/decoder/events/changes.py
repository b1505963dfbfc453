"""Which tables a change writes that was logged as a statement. What is not certain has a reason.

A statement is read by an allow-list, like all statements: its own form, and the functions that it
calls. A stored function may change any table, so any call is refused that is not surely one of the
servers' own: those win over a stored function of the same name only where the name has no quotes
and no database, and the parenthesis follows at once.
"""

import re
from typing import Final

from databases.statements import WORD, Token, TokenReader, tokens_of, without_setting

INSERT: Final = "INSERT"
UPDATE: Final = "UPDATE"
DELETE: Final = "DELETE"
ALL_OPERATIONS: Final = frozenset((INSERT, UPDATE, DELETE))

# MariaDB's sql_mode ORACLE has another grammar: functions without parentheses, for one.
_MODE_ORACLE: Final = 1 << 9
# Words of a comment that count or do not, by the server's version.
_EXECUTED: Final = re.compile(r"/\*M?!|\*/\*|SET_VAR", re.IGNORECASE)
# Settings of MariaDB's SET STATEMENT on which the meaning of the text behind it depends.
_SETS_MEANING: Final = frozenset(("SQL_MODE", "CHARACTER_SET_CLIENT", "COLLATION_CONNECTION"))

# Reserved words of both families that a parenthesis may follow, so none is a function's name.
_KEYWORDS: Final = frozenset(
    (
        *("ALL", "AND", "AS", "BETWEEN", "BY", "CASE", "DISTINCT", "DIV", "ELSE", "EXISTS"),
        *("FROM", "HAVING", "IN", "INDEX", "INTERVAL", "INTO", "JOIN", "KEY", "LIKE", "LIMIT"),
        *("NOT", "ON", "OR", "OVER", "PARTITION", "REGEXP", "RLIKE", "SELECT", "SET"),
        *("STRAIGHT_JOIN", "THEN", "UNION", "UPDATE", "USING", "VALUES", "WHEN", "WHERE", "XOR"),
    )
)
# Functions that all supported versions of both families have, and that change nothing.
_FUNCTIONS: Final = frozenset(
    (
        *("ABS", "ADDDATE", "ADDTIME", "ASCII", "AVG", "BIN", "BIT_AND", "BIT_COUNT", "BIT_LENGTH"),
        *("BIT_OR", "BIT_XOR", "CAST", "CEIL", "CEILING", "CHAR", "CHARACTER_LENGTH"),
        *("CHAR_LENGTH", "COALESCE", "CONCAT", "CONCAT_WS", "CONNECTION_ID", "CONV", "CONVERT"),
        *("CONVERT_TZ", "COUNT", "CRC32", "CURDATE", "CURRENT_DATE", "CURRENT_TIME"),
        *("CURRENT_TIMESTAMP", "CURRENT_USER", "CURTIME", "DATABASE", "DATE", "DATEDIFF"),
        *("DATE_ADD", "DATE_FORMAT", "DATE_SUB", "DAY", "DAYNAME", "DAYOFMONTH", "DAYOFWEEK"),
        *("DAYOFYEAR", "ELT", "EXP", "EXTRACT", "FIELD", "FIND_IN_SET", "FLOOR"),
        *("FORMAT", "FROM_DAYS", "FROM_UNIXTIME", "GREATEST", "GROUP_CONCAT", "HEX", "HOUR"),
        *("IF", "IFNULL", "INET_ATON", "INET_NTOA", "INSERT", "INSTR", "ISNULL"),
        *("LAST_INSERT_ID", "LCASE", "LEAST", "LEFT", "LENGTH", "LN", "LOCALTIME"),
        *("LOCALTIMESTAMP", "LOCATE", "LOG", "LOG10", "LOG2", "LOWER", "LPAD", "LTRIM"),
        *("MAKEDATE", "MAKETIME", "MAX", "MICROSECOND", "MID", "MIN", "MINUTE", "MOD"),
        *("MONTH", "MONTHNAME", "NOW", "NULLIF", "OCT", "OCTET_LENGTH", "ORD", "POSITION", "POW"),
        *("POWER", "QUARTER", "QUOTE", "RAND", "REPEAT", "REPLACE", "REVERSE", "RIGHT", "ROUND"),
        *("ROW_COUNT", "RPAD", "RTRIM", "SCHEMA", "SECOND", "SEC_TO_TIME", "SHA2"),
        *("SIGN", "SPACE", "SQRT", "STD", "STDDEV", "STRCMP", "STR_TO_DATE", "SUBDATE", "SUBSTR"),
        *("SUBSTRING", "SUBSTRING_INDEX", "SUBTIME", "SUM", "SYSDATE", "TIME", "TIMEDIFF"),
        *("TIMESTAMP", "TIMESTAMPADD", "TIMESTAMPDIFF", "TIME_FORMAT", "TIME_TO_SEC", "TO_DAYS"),
        *("TRIM", "TRUNCATE", "UCASE", "UNHEX", "UNIX_TIMESTAMP", "UPPER", "USER", "UTC_DATE"),
        *("UTC_TIME", "UTC_TIMESTAMP", "UUID", "UUID_SHORT", "VALUES", "VARIANCE", "VERSION"),
        *("WEEK", "WEEKDAY", "WEEKOFYEAR", "YEAR", "YEARWEEK"),
    )
)
# Types with a length: `CAST(x AS DECIMAL(10, 2))`.
_TYPES: Final = frozenset(
    ("BINARY", "CHAR", "CHARACTER", "DATETIME", "DECIMAL", "FLOAT", "NCHAR", "TIME")
)

_JOINS: Final = ("JOIN", "STRAIGHT_JOIN")
# Words that may follow a table in a list of tables, so none is its alias.
_BEHIND_TABLE: Final = (
    *("CROSS", "FORCE", "IGNORE", "INNER", "JOIN", "LEFT", "LIMIT", "NATURAL", "ON", "ORDER"),
    *("OUTER", "PARTITION", "RETURNING", "RIGHT", "SET", "STRAIGHT_JOIN", "USE", "USING", "WHERE"),
)
# Words of statements that read a table which they do not list: a subquery has one.
_READS: Final = ("SELECT", "TABLE", "WITH")
_INSERT_GOES_ON: Final = ("(", "PARTITION", "SELECT", "SET", "TABLE", "VALUE", "VALUES", "WITH")

UNKNOWN_FORM: Final = "its form is not known well enough to tell which tables it changes"


class _Refused(Exception):  # noqa: N818 - control flow within this module
    """The statement may change a table that it does not name in a known place."""


class Change:
    """What a change that was logged as a statement surely writes.

    `doubt`: why it may write anything, "" where it writes the `tables` (database, table) alone,
    with the `operations` that fire their triggers. `read_names`: if it reads other tables, all its
    names, some of which are theirs, and the default database, case folded.
    """

    def __init__(self, text: str, database: str, sql_mode: int) -> None:
        self.tables: list[tuple[str, str]] = []
        self.operations: frozenset[str] = ALL_OPERATIONS
        self.read_names: frozenset[str] = frozenset()
        self.doubt: str = ""
        self._database: str = database
        self._tokens: list[Token] = []
        self._lists_tables: bool = False  # more than the one that it changes
        self._begins_list: set[int] = set()  # parentheses behind the name of a table
        try:
            self._read(text, sql_mode)
        except _Refused as refused:
            self.tables = []
            self.doubt = str(refused)

    def to_lower_case(self) -> None:
        """Put the names of its tables into lower case, as a server may have them."""
        self.tables = [(database.lower(), table.lower()) for database, table in self.tables]

    def _read(self, text: str, sql_mode: int) -> None:
        if sql_mode & _MODE_ORACLE:
            raise _Refused("it ran under sql_mode ORACLE, in which names may be calls")
        if _EXECUTED.search(text) is not None:
            raise _Refused("it has a comment of the kind /*! */, which not all versions execute")
        whole = list(tokens_of(text, sql_mode))
        if any(token.is_open_quote for token in whole):
            raise _Refused("a quote in it does not end")
        while whole and whole[-1].is_word(";"):
            whole.pop()
        tokens = without_setting(whole)
        for token in whole[: len(whole) - len(tokens)]:
            if token.text.upper() in _SETS_MEANING:
                raise _Refused(f"it sets {token.text} for itself")
        self._tokens = tokens
        ctes = self._take_with()
        reader = self._reader
        if reader.take("INSERT"):
            self._insert(frozenset((INSERT,)))
        elif reader.take("REPLACE"):
            self._insert(frozenset((INSERT, DELETE)))
        elif reader.take("LOAD"):
            self._load()
        elif reader.take("UPDATE"):
            self._update(ctes)
        elif reader.take("DELETE"):
            self._delete(ctes)
        else:
            raise _Refused(UNKNOWN_FORM)
        if any(token.is_word("PORTION") for token in tokens):
            self.operations = ALL_OPERATIONS  # MariaDB's FOR PORTION OF also inserts what is left
        # The settings of SET STATEMENT may call functions too.
        self._check_calls(whole, len(whole) - len(tokens))
        if self._lists_tables or any(token.is_word(*_READS) for token in tokens):
            # A number is no name, and another one would be another question to the catalog.
            names = [
                token.text.casefold()
                for token in tokens
                if token.can_name and not (token.kind is WORD and token.text.isdecimal())
            ]
            self.read_names = frozenset([*names, self._database.casefold()])

    def _take_with(self) -> frozenset[str]:
        """Skip WITH and its subqueries; return their names."""
        self._reader: TokenReader = TokenReader(self._tokens, self._database)
        reader = self._reader
        if not reader.take("WITH"):
            return frozenset()
        reader.take("RECURSIVE")
        names: list[str] = []
        while True:
            names.append(reader.name())
            if reader.comes("("):
                self._begins_list.add(reader.at)
                self._skip_parentheses()
            if not (reader.take("AS") and reader.comes("(")):
                raise _Refused(UNKNOWN_FORM)
            self._skip_parentheses()
            if not reader.take(","):
                return frozenset(names)

    def _skip_parentheses(self) -> None:
        """Skip an opening parenthesis, up to the one that closes it."""
        reader = self._reader
        depth = 0
        while (token := reader.next()) is not None:
            depth += token.is_word("(") - token.is_word(")")
            if depth == 0:
                return
        raise _Refused(UNKNOWN_FORM)

    def _table(self) -> tuple[str, str]:
        """Take the name of a table that the statement changes."""
        database, table = self._reader.table()
        if not database or not table or self._reader.comes("."):
            raise _Refused("the table that it changes has no name that can be read")
        if self._reader.comes("("):
            self._begins_list.add(self._reader.at)
        return database, table

    def _insert(self, operations: frozenset[str]) -> None:
        reader = self._reader
        reader.take_all("LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "IGNORE")
        reader.take("INTO")
        self.tables = [self._table()]
        if not reader.comes(*_INSERT_GOES_ON):
            raise _Refused(UNKNOWN_FORM)
        if reader.take("VALUE") and reader.comes("("):
            self._begins_list.add(reader.at)
        if any(token.is_word("DUPLICATE") for token in self._tokens):
            operations |= {UPDATE}
        self.operations = operations

    def _load(self) -> None:
        reader = self._reader
        operations = {INSERT}
        if not reader.take("DATA", "XML"):
            raise _Refused(UNKNOWN_FORM)
        reader.take_all("LOW_PRIORITY", "CONCURRENT", "LOCAL")
        if not reader.take("INFILE") or reader.next() is None:
            raise _Refused(UNKNOWN_FORM)
        if reader.take("REPLACE"):
            operations.add(DELETE)
        reader.take("IGNORE")
        if not (reader.take("INTO") and reader.take("TABLE")):
            raise _Refused(UNKNOWN_FORM)
        self.tables = [self._table()]
        # The list of columns comes last, behind words that are reserved, or not.
        for i in range(reader.at, len(self._tokens)):
            if (
                self._tokens[i].is_word("(")
                and self._tokens[i - 1].is_word("LINES", "ROWS")
                and not self._tokens[i - 2].is_word(".")
            ):
                self._begins_list.add(i)
        self.operations = frozenset(operations)

    def _update(self, ctes: frozenset[str]) -> None:
        reader = self._reader
        reader.take_all("LOW_PRIORITY", "IGNORE")
        self.tables = self._table_list(ctes, "SET")
        if not reader.take("SET"):
            raise _Refused(UNKNOWN_FORM)
        self.operations = frozenset((UPDATE,))

    def _delete(self, ctes: frozenset[str]) -> None:
        reader = self._reader
        reader.take_all("LOW_PRIORITY", "QUICK", "IGNORE")
        self.operations = frozenset((DELETE,))
        is_first_form = reader.take("FROM")
        at = reader.at
        is_plain, targets = self._skip_target(), 1
        while reader.take(","):
            self._skip_target()
            targets += 1
        if is_first_form and not reader.comes("USING"):
            if targets != 1:
                raise _Refused(UNKNOWN_FORM)
            reader.at = at
            table = self._table()
            if is_plain and table[1] in ctes:
                raise _Refused(UNKNOWN_FORM)
            self.tables = [table]
            return
        if not reader.take("USING", "FROM"):
            raise _Refused(UNKNOWN_FORM)
        self.tables = self._table_list(ctes, "WHERE")

    def _skip_target(self) -> bool:
        """Skip `name`, `name.*`, `database.name` or `database.name.*`; return if it is `name`."""
        reader = self._reader
        if not reader.name():
            raise _Refused(UNKNOWN_FORM)
        if not reader.take("."):
            return True
        if not reader.take("*") and (
            not reader.name() or (reader.take(".") and not reader.take("*"))
        ):
            raise _Refused(UNKNOWN_FORM)
        return False

    def _table_list(self, ctes: frozenset[str], end: str) -> list[tuple[str, str]]:
        """Take tables, joins and derived tables, up to the word `end` or what follows them.

        Any of the tables may be the one that is changed: which one a column or an alias names
        depends on rules that differ between servers.
        """
        reader = self._reader
        refs: list[tuple[str, str]] = []  # of a derived table, which nothing changes, ("", "")
        expects = True
        while reader.at < len(reader.tokens):
            if expects:
                expects = self._table_ref(ctes, refs)
            elif reader.take("."):
                reader.next()  # any word is a name there
            elif reader.comes(end, "WHERE", "ORDER", "LIMIT", "RETURNING"):
                break
            elif reader.take(",", *_JOINS):
                expects = True
            elif reader.comes("("):
                self._skip_parentheses()  # a condition, USING (...) or the index of a hint
            elif reader.comes("{", "}"):
                raise _Refused(UNKNOWN_FORM)
            else:
                reader.next()
        if expects:
            raise _Refused(UNKNOWN_FORM)
        self._lists_tables = len(refs) > 1
        names = [ref for ref in refs if ref[1]]
        if not names or any(not database for database, _ in names):
            raise _Refused("a table that it changes is not one of those that it lists")
        return names

    def _table_ref(self, ctes: frozenset[str], refs: list[tuple[str, str]]) -> bool:
        """Take one table of a list; whether another one must follow, behind a parenthesis."""
        reader = self._reader
        if reader.take("LATERAL") and not reader.comes("("):
            raise _Refused(UNKNOWN_FORM)
        database, table = "", ""
        if reader.comes("("):
            inner = TokenReader(reader.tokens[reader.at :])
            inner.take_all("(")
            if not inner.comes("SELECT", "TABLE", "VALUES", "WITH"):
                reader.next()
                return True
            self._skip_parentheses()
        else:
            has_database = reader.at + 1 < len(reader.tokens) and reader.tokens[
                reader.at + 1
            ].is_word(".")
            database, table = reader.table()
            if not table or reader.comes("(", "."):
                raise _Refused(UNKNOWN_FORM)
            if not has_database and table in ctes:
                table = ""
        if reader.take("PARTITION"):
            if not reader.comes("("):
                raise _Refused(UNKNOWN_FORM)
            self._skip_parentheses()
        if reader.comes("FOR"):
            raise _Refused(UNKNOWN_FORM)
        if reader.take("AS") or not reader.comes(*_BEHIND_TABLE):
            reader.name()  # its alias
        refs.append((database, table))
        return False

    def _check_calls(self, tokens: list[Token], shift: int) -> None:
        """Refuse what may call a stored function, or use a sequence."""
        for i in range(1, len(tokens)):
            token = tokens[i]
            before = tokens[i - 1]
            if token.is_word("FOR") and before.is_word("VALUE"):
                raise _Refused("it may use a sequence")
            if not token.is_word("(") or not before.can_name or i - shift in self._begins_list:
                continue
            word = before.word
            is_qualified = i > 1 and tokens[i - 2].is_word(".")
            if not is_qualified and word in _KEYWORDS:
                continue
            is_own = word in _FUNCTIONS or (
                word in _TYPES and i > 1 and tokens[i - 2].is_word("AS")
            )
            if is_qualified or not is_own or before.end != token.begin:
                raise _Refused(f"it may call the stored function {before.text}")
