"""Random statements on logged and excluded tables, beside what the server has changed by them."""

import random
from dataclasses import dataclass, field

import pytest
from pymysql.cursors import Cursor
from pymysql.err import MySQLError

from event_token import parse_gtid_set
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import executed_set
from tests.producers.decoder.statements_apart import (
    Followed,
    leaving_out,
    new_account,
    statement_catalog,
)

pytestmark = pytest.mark.full

SEED = 27
STATEMENTS = 500
# Statements that run before the stream comes to them: the catalog is then of a later time.
BEHIND_MAX = 6

# `inc` is logged, `exc` is not. Every way by which the one changes with the other.
SETUP = (
    "CREATE TABLE {inc}.t0(id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
    "CREATE TABLE {inc}.t1(id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
    "CREATE TABLE {inc}.m(id INT, v INT) ENGINE=MyISAM",
    "CREATE TABLE a(id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
    "CREATE TABLE b(id INT PRIMARY KEY AUTO_INCREMENT, v INT) PARTITION BY HASH (id) PARTITIONS 3",
    "CREATE TABLE `order`(id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
    "CREATE TABLE with_insert(id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
    "CREATE TABLE with_update(id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
    "CREATE TABLE with_delete(id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
    "CREATE TABLE parent(id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
    (
        "CREATE TABLE {inc}.child(id INT PRIMARY KEY AUTO_INCREMENT, v INT, "
        "FOREIGN KEY (v) REFERENCES {exc}.parent (id) ON DELETE SET NULL ON UPDATE CASCADE)"
    ),
    "CREATE TABLE merged(id INT, v INT) ENGINE=MERGE UNION=({inc}.m) INSERT_METHOD=LAST",
    (
        "CREATE TRIGGER g1 AFTER INSERT ON with_insert FOR EACH ROW "
        "INSERT INTO {inc}.t0 (v) VALUES (NEW.v)"
    ),
    "CREATE TRIGGER g2 BEFORE UPDATE ON with_update FOR EACH ROW UPDATE {inc}.t1 SET v = v + 1",
    "CREATE TRIGGER g3 AFTER DELETE ON with_delete FOR EACH ROW DELETE FROM {inc}.t1 LIMIT 1",
    (
        "CREATE FUNCTION changes(x INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA BEGIN "
        "UPDATE {inc}.t0 SET v = COALESCE(v, 0) + 1; RETURN x; END"
    ),
    "CREATE FUNCTION doubled(x INT) RETURNS INT DETERMINISTIC RETURN x * 2",
    "CREATE PROCEDURE moves() INSERT INTO {inc}.t1 (v) SELECT v FROM {exc}.a LIMIT 1",
    "CREATE VIEW seen AS SELECT * FROM {inc}.t0",
    "CREATE VIEW mine AS SELECT * FROM a",
    "CREATE VIEW counted AS SELECT changes(1) AS id, 2 AS v",
)
LOGGED = ("{inc}.t0", "{inc}.t1", "{inc}.child")
PLAIN = ("a", "{exc}.a", "b", "`{exc}`.`b`", "`order`", "{service}")
TRICKY = ("with_insert", "{exc}.with_update", "with_delete", "parent", "merged", "seen", "mine")
VALUES = (
    *("1", "NULL", "3 + 4", "COALESCE(NULL, 5)", "LENGTH('it''s, {inc}.t0')", "@x", "RAND() * 9"),
    *("doubled(2)", "changes(3)", "{exc}.changes (4)", "(SELECT MAX(v) FROM {inc}.t0 AS q)"),
    *("IF(1 > 2, 3, 4)", "/* changes(1) */ 6", "CAST('7' AS SIGNED)", "UNIX_TIMESTAMP() % 100"),
)
SOURCES = ("a", "b", "{inc}.t0", "{inc}.t1", "counted", "mine", "(SELECT 1 AS id, 2 AS v) AS d")
CHANGES_OF_DEFINITIONS = (
    ("CREATE TRIGGER g4 AFTER INSERT ON a FOR EACH ROW INSERT INTO {inc}.t1 (v) VALUES (7)"),
    "DROP TRIGGER IF EXISTS g4",
    "CREATE OR REPLACE VIEW mine AS SELECT * FROM {inc}.t1",
    "CREATE OR REPLACE VIEW mine AS SELECT * FROM {exc}.a",
    "ALTER TABLE b COMMENT 'x'",
)


@dataclass
class Writer:
    """Draws statements and notes which of them have changed a logged table."""

    database: DatabaseFixture
    inc: str
    exc: str
    service: str
    chance: random.Random
    changed: dict[int, bool] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)

    def text(self, of: str) -> str:
        names = {"{inc}": self.inc, "{exc}": self.exc, "{service}": self.service}
        for mark, name in names.items():
            of = of.replace(mark, name)
        return of

    def table(self) -> str:
        return self.chance.choice(
            self.chance.choices((PLAIN, TRICKY, LOGGED), weights=(6, 3, 1))[0]
        )

    def value(self) -> str:
        is_plain = self.chance.random() < 0.7
        return self.chance.choice(VALUES[:7] if is_plain else VALUES)

    def draw(self) -> str:
        """One statement; some are refused by the server."""
        pick, table = self.chance.choice, self.table()
        where = pick(("", f" WHERE id > {self.chance.randrange(5)}", " WHERE v IS NOT NULL"))
        source = pick(SOURCES)
        form = self.chance.randrange(12)
        limit = pick(("", " LIMIT 2", " ORDER BY v, id LIMIT 1"))
        if form <= 2:
            more = pick(("", f" ON DUPLICATE KEY UPDATE v = {self.value()}"))
            head = pick(("INSERT INTO", "insert ignore", "INSERT/* x */INTO"))
            return f"{head} {table} (v) VALUES ({self.value()}), ({self.value()}){more}"
        if form == 3:
            return (
                f"REPLACE INTO {table} SET id = {self.chance.randrange(1, 9)}, v = {self.value()}"
            )
        if form == 4:
            alias = "" if " AS " in source else " AS x"
            return f"INSERT INTO {table} (v) SELECT v FROM {source}{alias}{limit}"
        if form <= 6:
            return f"UPDATE {table} SET v = {self.value()}{where}{limit}"
        if form == 7:
            assigned = pick(
                (
                    "x.v = 5",
                    "y.v = 6",
                    "x.v = y.v, y.v = 7",
                    "x.v = (SELECT 8 FROM dual WHERE 1), y.v = 9",
                )
            )
            join = pick((",", "JOIN", "CROSS JOIN", "LEFT JOIN"))
            on = pick((" ON x.id = y.id", " USING (id)")) if join == "LEFT JOIN" else ""
            return f"UPDATE {table} AS x {join} {self.table()} y{on} SET {assigned}"
        if form == 8:
            return f"DELETE FROM {table}{where}{limit}"
        if form == 9:
            target = pick(("x", "y", "x, y"))
            return pick(
                (
                    f"DELETE {target} FROM {table} x JOIN {self.table()} y ON x.id = y.id",
                    f"DELETE FROM {target} USING {table} AS x, {self.table()} AS y",
                )
            )
        if form == 10:
            with_it = f"WITH c AS (SELECT id, v FROM {source})"
            return pick(
                (
                    f"{with_it} UPDATE {table} JOIN c USING (id) SET {table}.v = 4",
                    f"{with_it} DELETE FROM {table} WHERE id IN (SELECT id FROM c)",
                    f"SET STATEMENT max_statement_time = 9 FOR UPDATE {table} SET v = 2",
                )
            )
        return pick(("CALL moves()", f"INSERT INTO {table} (v) VALUES (changes(1))"))

    def run(self, count: int) -> None:
        """Run this many statements that the server takes, definitions among them."""
        with self.database.connect(database=self.exc) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION binlog_format = STATEMENT")
            cursor.execute("SET @x = 3")
            before = self.logged_rows(cursor)
            while count:
                defines = self.chance.random() < 0.08
                statement = self.text(
                    self.chance.choice(CHANGES_OF_DEFINITIONS) if defines else self.draw()
                )
                at = executed_set(self.database)
                try:
                    cursor.execute(statement)
                except MySQLError:
                    continue
                end = executed_set(self.database)
                if end == at:
                    continue  # it met no row, and is not logged
                after = self.logged_rows(cursor)
                if not defines:
                    self.changed[len(self.texts)] = before != after
                    count -= 1
                self.texts.append(statement)
                self.ends.append(end)
                before = after

    def logged_rows(self, cursor: Cursor) -> list[object]:
        """All rows of the logged tables."""
        found: list[object] = []
        for table in ("t0", "t1", "m", "child"):
            cursor.execute(f"SELECT * FROM {self.inc}.{table} ORDER BY 1, 2")
            found.append(cursor.fetchall())
        return found


def test_no_statement_that_changed_a_logged_table_passes(database: DatabaseFixture) -> None:
    """Of 500 statements none passes that changed a logged table; most harmless ones do."""
    inc, exc = database.new_database(), database.new_database()
    service = f"mysql.{exc}"
    writer = Writer(database, inc, exc, service, random.Random(SEED))
    with database.connect(database=exc) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL log_bin_trust_function_creators = ON")
        for statement in SETUP:
            cursor.execute(writer.text(statement))
        cursor.execute(f"CREATE TABLE {service}(id INT PRIMARY KEY AUTO_INCREMENT, v INT)")
    catalog = statement_catalog(database, new_account(database))
    stream = Followed(database, executed_set(database), leaving_out(f"/{exc}\\..*/"), catalog)
    stopped: dict[int, str] = {}
    try:
        while len(writer.changed) < STATEMENTS:
            first = len(writer.texts)
            writer.run(writer.chance.randint(1, BEHIND_MAX))
            ends = [parse_gtid_set(end, database.flavor) for end in writer.ends[first:]]
            for gtid, why in stream.follow().items():
                place = next(i for i, end in enumerate(ends) if end.contains_gtid(gtid))
                stopped[first + place] = why
    finally:
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {service}")
    changed = [i for i, has_changed in writer.changed.items() if has_changed]
    harmless = [i for i, has_changed in writer.changed.items() if not has_changed]
    needless = [f"{writer.texts[i]}: {stopped[i]}" for i in harmless if i in stopped]

    assert [writer.texts[i] for i in changed if i not in stopped] == []
    assert stream.passed == len(harmless) - len(needless)
    # 99 of 332 on MySQL, 69 of 312 on MariaDB: an UPDATE that meets no row, a view of an excluded
    # table, a foreign key whose column stays the same.
    assert len(needless) < len(harmless) * 0.4, "\n".join(needless)
