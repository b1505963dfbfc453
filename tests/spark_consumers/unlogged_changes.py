"""Tables, and what ALTERs and the tools for online schema changes do to them: their statements.

Those of the tools are as pt-online-schema-change 3.2.1 sends them (found in a binlog), and as
gh-ost's sources have them. Of triggers and gh-ost's binlog reader nothing is left but their rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COLUMNS = "id INT PRIMARY KEY, v VARCHAR(20), at DATETIME(6), e ENUM('a','b')"
FILL = (
    "INSERT INTO {t} (id, v, at, e) VALUES (1, 'one', '2024-01-02 03:04:05.600000', 'a'), "
    "(2, 'two', '2024-01-02 03:04:05.400000', 'b'), (3, NULL, NULL, NULL), "
    "(4, 'four', '2024-12-31 23:59:59.999999', 'a'), (5, 'five', '2024-02-29 00:00:00', 'b')"
)
# Behind the change; row 1 is as old as the table.
LATER = ("UPDATE {t} SET v = 'zz' WHERE id = 2", "DELETE FROM {t} WHERE id = 5")
_EXTRA = "ADD COLUMN extra INT NOT NULL DEFAULT 7"
_CREATE_SHADOW = (
    "CREATE TABLE {shadow} (`id` int NOT NULL, `v` varchar(20) DEFAULT NULL, "
    "`at` datetime(6) DEFAULT NULL, `e` enum('a','b') DEFAULT NULL, PRIMARY KEY (`id`))"
)
_NAMES = "(`id`, `v`, `at`, `e`)"


@dataclass(frozen=True)
class Tool:
    """What a tool sends before and after the rows are in its shadow table."""

    shadow: str
    swap: tuple[str, ...]

    def statements(self, database: str, table: str) -> list[str]:
        """All of it for a table; an application changes a row meanwhile."""
        t, shadow = f"`{database}`.`{table}`", f"`{database}`.`_{table}_{self.shadow}`"
        names = {"t": t, "shadow": shadow, "own": f"`{database}`.`_{table}"}
        names |= {"table": f"`{table}`", "old": f"`_{table}_del`"}
        fill = (
            f"INSERT LOW_PRIORITY IGNORE INTO {shadow} {_NAMES} SELECT `id`, `v`, `at`, `e` "
            f"FROM {t} LOCK IN SHARE MODE /*pt-online-schema-change 23259 copy table*/"
        )
        middle = (
            f"UPDATE {t} SET v = 'meanwhile' WHERE id = 4",
            f"REPLACE INTO {shadow} {_NAMES} SELECT `id`, `v`, `at`, `e` FROM {t} WHERE id = 4",
        )
        alter = f"ALTER TABLE {shadow} {_EXTRA}, MODIFY at DATETIME(0)"
        swap = (each.format(**names) for each in self.swap)
        return [_CREATE_SHADOW.format(**names), alter, fill, *middle, *swap]


TOOLS: Mapping[str, Tool] = {
    "pt_osc": Tool(
        "new",
        ("RENAME TABLE {t} TO {own}_old`, {shadow} TO {t}", "DROP TABLE IF EXISTS {own}_old`"),
    ),
    "pt_osc_drop_swap": Tool(
        "new",
        (
            "SET foreign_key_checks=0",
            "DROP TABLE IF EXISTS {t}",
            "RENAME TABLE {shadow} TO {t}",
            "SET foreign_key_checks=1",
        ),
    ),
    "gh_ost_atomic": Tool(
        "gho",
        (
            "create /* gh-ost */ table {own}_ghc` (id bigint auto_increment primary key)",
            "create /* gh-ost */ table {own}_del` (id int primary key) comment='cut-over-sentry'",
            "drop /* gh-ost */ table if exists {own}_del`",
            "rename /* gh-ost */ table {t} to {own}_del`, {shadow} to {t}",
            "drop /* gh-ost */ table if exists {own}_ghc`",
            "drop /* gh-ost */ table if exists {own}_del`",
        ),
    ),
    "gh_ost_two_step": Tool(
        "gho",
        (
            "alter /* gh-ost */ table {t} rename {old}",
            "alter /* gh-ost */ table {shadow} rename {table}",
            "drop /* gh-ost */ table if exists {own}_del`",
        ),
    ),
}
# In a session without strict mode, which would refuse the values that do not fit, and where a
# backslash in a text is one.
ALTERS: Mapping[str, str] = {
    "default": _EXTRA,
    "implicit_default": "ADD COLUMN extra INT NOT NULL",
    "backslash": r"ADD COLUMN w INT COMMENT 'x\', ADD COLUMN extra INT DEFAULT 5 COMMENT 'y'",
    "moment": "ADD COLUMN extra DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP",
    "expression": "ADD COLUMN extra INT NOT NULL DEFAULT (ASCII('a'))",
    "generated": "ADD COLUMN extra INT AS (id * 2) STORED",
    "rounded": "MODIFY at DATETIME(0)",
    "shortened": "MODIFY v VARCHAR(2)",
    "charset": "CONVERT TO CHARACTER SET latin1",
    "relabelled": "MODIFY e ENUM('x','b')",
    "nullable": "ADD COLUMN extra INT, ADD KEY (v)",
    "dropped": "DROP COLUMN at",
}
TABLES: Sequence[str] = (*ALTERS, *TOOLS)
# For sinks that take long: values and columns that change or do not, and swaps of tables.
SOME: Sequence[str] = ("default", "rounded", "nullable", "dropped", "pt_osc", "gh_ost_two_step")
# Nothing is copied for these.
KEPT = frozenset({"nullable", "dropped"})


def changes_of(database: str, table: str) -> list[str]:
    """What is done to a table."""
    if table in TOOLS:
        return TOOLS[table].statements(database, table)
    return [
        "SET sql_mode = 'NO_BACKSLASH_ESCAPES'",
        f"ALTER TABLE `{database}`.`{table}` {ALTERS[table]}",
    ]
