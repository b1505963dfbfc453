"""Whether a statement on tables that the log leaves out changed other tables: asks the catalog.

The catalog says what is now, and the statement ran then. Its answer is believed where the binlog
has no definition in between that may have changed it: docs/decisions.md.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from databases.catalog import TABLE_KINDS, VIEW
from databases.grants import privileges_on, read_account
from databases.sql import quoted, rows
from event_token import Flavor, GtidSet, parse_gtid_set
from producers.decoder.events.changes import DELETE, UPDATE, Change
from producers.decoder.events.statements import Definition
from producers.replication.stream import server_errors
from producers.servers.definitions_ahead import DefinitionsAhead
from producers.servers.server_list import OpenServer

# Engines that keep their rows themselves. MERGE, FEDERATED, SPIDER and CONNECT write elsewhere.
_ENGINES: Final = frozenset(
    (
        *("ARIA", "ARCHIVE", "BLACKHOLE", "CSV", "INNODB", "MEMORY", "MYISAM"),
        *("PERFORMANCE_SCHEMA", "ROCKSDB"),
    )
)
# No server lets these have triggers.
_WITHOUT_TRIGGERS: Final = frozenset(("mysql", "performance_schema", "information_schema"))
# InnoDB writes other names in an encoding of file names.
_PLAIN_NAME: Final = re.compile(r"[0-9a-z_]+/[0-9a-z_]+")
# An ALTER TABLE that drops a foreign key has one of them.
_KEY_WORDS: Final = frozenset(("foreign", "constraint"))
_CASCADES: Final = (
    "SELECT id, for_name, ref_name FROM information_schema.{view} "
    "WHERE type & 15 <> 0 AND for_name <> ref_name"
)
# All of the name: where case counts, some servers show tables whose names differ in case alone.
_KINDS: Final = (
    "SELECT table_type, engine FROM information_schema.tables "
    "WHERE table_schema = %s AND table_name = %s"
)
_TRIGGERS: Final = (
    "SELECT trigger_name, event_object_table, event_manipulation "
    "FROM information_schema.triggers WHERE trigger_schema = %s"
)
# MariaDB: a value that comes from a sequence changes it.
_DEFAULTS: Final = (
    "SELECT column_name FROM information_schema.columns WHERE table_schema = %s "
    "AND table_name = %s AND LOWER(column_default) REGEXP 'nextval|next value'"
)
_VIEWS: Final = (
    "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = %s"
)
# A producer that asks about more changes than these asks again.
_ANSWERS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked about a table: changed by these operations, in a statement with these names."""

    database: str
    table: str
    operations: frozenset[str]
    read_names: frozenset[str]

    @property
    def name(self) -> str:
        """Database and table."""
        return f"{self.database}.{self.table}"

    @property
    def may_cascade(self) -> bool:
        """Whether foreign keys that refer to the table may change other ones."""
        return bool(self.operations & {UPDATE, DELETE})


class StatementCatalog:
    """The decoder's `StatementChecks`: the catalog of the server whose binlog is read."""

    def __init__(self, server: OpenServer, ahead: DefinitionsAhead, *, has_cascades: bool) -> None:
        """`server`: its connection is shared with other queries, and is in no transaction.

        `has_cascades`: it may have cascading foreign keys; others stop the stream by themselves.
        """
        self._server = server
        self._has_cascades = has_cascades
        self._ahead = ahead
        self._answers: dict[_Question, str] = {}

    def defined(self, definition: Definition) -> None:
        """See `StatementChecks`: what was answered may have become another answer."""
        for question in [each for each in self._answers if self._is_about(each, definition)]:
            del self._answers[question]

    def doubt(self, change: Change, read: Callable[[], GtidSet]) -> str:
        """See `StatementChecks`."""
        for database, table in dict.fromkeys(change.tables):
            question = _Question(database, table, change.operations, change.read_names)
            found = self._answers.get(question)
            if found is None:
                if len(self._answers) >= _ANSWERS_MAX:
                    self._answers.clear()
                found = self._answers[question] = self._ask(question, read())
            if found:
                return found
        return ""

    def _ask(self, question: _Question, read: GtidSet) -> str:
        """The catalog's answer, if it was the same when the statement ran."""
        server = self._server
        with server_errors(server.settings, "asking for what a statement changes on"):
            found = self._ask_catalog(question)
            if found:
                return found
            executed = server.family.moment(server.connection).executed
        parsed = parse_gtid_set(executed, server.family.flavor)
        found_ahead = self._ahead.first(read, parsed, lambda each: self._may_hide(question, each))
        if found_ahead is None:
            return ""
        gtid, definition = found_ahead
        kind = "a long statement" if definition is None else definition.kind()
        return (
            f"{server.name} has executed {kind} since ({gtid}), so its catalog does not tell what "
            f"else changed with {question.name} then"
        )

    def _may_hide(self, question: _Question, definition: Definition | None) -> bool:
        """Whether a definition may have taken away what the statement still met; None: unknown."""
        if definition is None:
            return True
        # What it has created the catalog shows.
        creates = definition.kind() == "CREATE TRIGGER" and "replace" not in definition.words()
        return not creates and self._is_about(question, definition)

    def _is_about(self, question: _Question, definition: Definition) -> bool:
        """Whether the answer may be another one after a definition."""
        words, kind = definition.words(), definition.kind()
        if not words or question.table.casefold() in words:
            return True
        here = question.database.casefold()
        if kind == "DROP TRIGGER":
            names = definition.names()
            return not names or any(database.casefold() == here for database, _ in names)
        cascades = question.may_cascade and self._has_cascades
        if kind in {"DROP DATABASE", "DROP SCHEMA"}:
            return here in words or cascades or bool(question.read_names)
        if question.read_names & words and ("view" in words or kind.startswith("RENAME")):
            return True
        drops_key = (
            kind in {"DROP TABLE", "DROP TABLES", "DROP TEMPORARY"}
            or (kind == "ALTER TABLE" and "drop" in words and bool(words & _KEY_WORDS))
            or (kind == "CREATE TABLE" and "replace" in words)
        )
        return cascades and drops_key

    def _ask_catalog(self, question: _Question) -> str:
        """Why a statement on the table may change other tables, as the catalog has it now."""
        found = self._lacking(question) or self._kind(question)
        if found:
            return found
        with self._ahead.locked(question.database, question.table):
            return self._kind(question) or self._elsewhere(question)

    def _lacking(self, question: _Question) -> str:
        """What the account would not see, with the grant that it needs."""
        connection, database = self._server.connection, question.database
        account = read_account(connection)
        here = privileges_on(connection, database)
        has_all = "ALL PRIVILEGES" in here
        on, needed = f"{quoted(database)}.*", []
        if not has_all and "SELECT" not in here:
            needed.append(f"SELECT ON {on}")
        if database not in _WITHOUT_TRIGGERS and not has_all and "TRIGGER" not in here:
            needed.append(f"TRIGGER ON {on}")
        if self._has_cascades and question.may_cascade and not account.has("PROCESS"):
            needed.append("PROCESS ON *.*")
        if question.read_names and not account.has_everywhere("SELECT"):
            needed.append("SELECT ON *.*")
        if not needed:
            return ""
        grants = " ".join(f"GRANT {each} TO {account.name};" for each in needed)
        return (
            f"whether a change of {question.name} changes other tables, by triggers, foreign keys "
            f"or views, is not visible to the producer's account: {grants}"
        )

    def _kind(self, question: _Question) -> str:
        values = (question.database, question.table)
        found = rows(self._server.connection, _KINDS, values)
        if not found:
            return f"{question.name}, which it changes, is not on {self._server.name} now"
        for kind, engine in found:
            if kind not in TABLE_KINDS:
                return f"{question.name}, which it changes, is a {kind}: other tables have its rows"
            if str(engine).upper() not in _ENGINES:
                return f"{question.name}, which it changes, has the engine {engine}: others may too"
        return ""

    def _elsewhere(self, question: _Question) -> str:
        connection = self._server.connection
        is_mariadb = self._server.family.flavor is Flavor.MARIADB
        for trigger, table, events in rows(connection, _TRIGGERS, (question.database,)):
            fires = any(operation in str(events) for operation in question.operations)
            if fires and str(table).casefold() == question.table.casefold():
                return f"trigger {trigger} of {question.name} may change other tables"
        if self._has_cascades and question.may_cascade:
            view = "INNODB_SYS_FOREIGN" if is_mariadb else "INNODB_FOREIGN"
            parent = f"{question.database}/{question.table}".casefold()
            is_plain = _PLAIN_NAME.fullmatch(parent) is not None
            for key, child, referred in rows(connection, _CASCADES.format(view=view)):
                if not is_plain or str(referred).casefold() == parent:
                    other = str(child).replace("/", ".")
                    return f"foreign key {key} changes {other} with {question.name}"
        if is_mariadb:
            for (column,) in rows(connection, _DEFAULTS, (question.database, question.table)):
                return f"column {column} of {question.name} takes its values from a sequence"
        if question.read_names:
            for database, view in rows(connection, _VIEWS, (VIEW,)):
                if {str(database).casefold(), str(view).casefold()} <= question.read_names:
                    return f"it may read the view {database}.{view}, which may call a function"
        return ""
