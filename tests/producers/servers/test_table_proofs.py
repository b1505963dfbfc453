"""Names by proof on a server that logs none: the right names and values, or a halt."""

import random
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from pymysql.cursors import DictCursor
from pymysql.err import MySQLError

from event_token import Flavor, MysqlGtidSet, Rebuild
from producers.copy.definition import CannotCopy, read_definition
from producers.decoder import Decoder
from producers.decoder.errors import UnprovedTable
from producers.decoder.events.statements import Definition, Statement
from producers.errors import AnswerTooLate, TableLocked
from producers.replication.stream import ReplicationStream
from producers.servers import definitions_ahead
from producers.servers.definitions_ahead import LOCK_WAIT_S, Looked
from producers.servers.table_proofs import ProvedTables, logged_key
from producers.start.last_transaction import is_at_its_place
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set
from tests.producers.decoder.decoding import ALL_ROWS, Sink, new_decoder
from tests.producers.decoder.random_tables import RandomTable
from tests.producers.decoder.statements_apart import ahead_of, new_account, server_as
from tests.producers.session.producing import settings_alone
from topics.progress.copy_topic import ProvedTable, decode

# Each is another one.
HISTORIES: Final = 60
STEPS: Final = 14
GRANTS: Final = "REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.*"
# Each leaves the table map as it is, or may do so: only the names or the labels tell.
DEFINITIONS: Final = (
    "ALTER TABLE {t} RENAME COLUMN {a} TO {b}, RENAME COLUMN {b} TO {a}",
    "ALTER TABLE {t} RENAME COLUMN {a} TO {new}",
    "ALTER TABLE {t} MODIFY {a} INT FIRST",
    "ALTER TABLE {t} ADD COLUMN {new} INT DEFAULT 7",
    "ALTER TABLE {t} DROP COLUMN {a}",
    "ALTER TABLE {t} DROP COLUMN {a}, ADD COLUMN {new} INT DEFAULT 8",
    "ALTER TABLE {t} MODIFY e ENUM('y','x','z') DEFAULT 'x'",
    "ALTER TABLE {t} MODIFY e ENUM('p','q','x','y','z') DEFAULT 'x'",
    "ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY ({a}, id)",
    "RENAME TABLE {t} TO {spare}, {u} TO {t}, {spare} TO {u}",
    "RENAME TABLE {t} TO {spare}",
    "DROP TABLE {t}",
    "CREATE TABLE {spare} LIKE {t}",
    "ALTER TABLE {t} COMMENT 'nothing'",
    "ANALYZE TABLE {t}",
    "TRUNCATE TABLE {t}",
    "CREATE TRIGGER {new} BEFORE INSERT ON {t} FOR EACH ROW SET @x = 1",
)
CREATE: Final = (
    "CREATE TABLE {t} (id INT NOT NULL, c1 INT NOT NULL DEFAULT 1, c2 INT NOT NULL DEFAULT 2, "
    "c3 INT NOT NULL DEFAULT 3, e ENUM('x','y','z') DEFAULT 'y', PRIMARY KEY (id))"
)


@dataclass
class Truth:
    """What the row of a statement is called, as the server itself had it then."""

    table: str
    row: dict[str, Any]


@dataclass
class History:
    """Statements that are executed one by one, and a producer that reads them when it is told to.

    `chunks`: what each statement added to the binlog, with what is known of it.
    """

    server: DatabaseFixture
    name: str
    rng: random.Random
    user: str
    sink: Sink = field(default_factory=Sink)
    chunks: list[tuple[bytes, str, Truth | None]] = field(default_factory=list)
    next_chunk: int = 0
    rows: int = 0
    names: int = 0
    topic: dict[bytes, bytes] = field(default_factory=dict)
    committed: tuple[str, int, int, int, int | None] = ("", 0, 0, 1, None)
    looked: Looked = field(default_factory=Looked)
    waits: random.Random = field(default_factory=lambda: random.Random(0))
    cut_off: int = 0
    halted: str = ""

    def wait(self, _what: str, _since_s: float) -> bool:
        """Cut some questions off: the next session goes on with what was found."""
        return self.waits.random() < 0.8

    def begin(self) -> None:
        """Follow the server from here on."""
        with self.server.connect(database=self.name) as connection, connection.cursor() as cursor:
            for table in ("t", "u"):
                cursor.execute(CREATE.format(t=table))
        self.position = executed_set(self.server)
        self.committed = (self.position, 0, 0, 1, None)
        self.restart()

    def restart(self) -> None:
        """A new producer, where the last commit was."""
        position, self.next_chunk, kept, seq, count = self.committed
        del self.sink.messages[kept:]
        server = server_as(self.server, self.user)
        settings = settings_alone(self.server)
        self.proofs = ProvedTables(server, settings, ahead_of(server, self.looked, self.wait))
        records = [decode(key, value, "") for key, value in self.topic.items()]
        proved = {(r.database, r.table): r for r in records if isinstance(r, ProvedTable)}
        self.proofs.begin(proved, 0, count)
        self.decoder: Decoder = new_decoder(
            self.sink, Flavor.MYSQL, position, next_seq=seq, proofs=self.proofs
        )

    def commit(self) -> None:
        """Keep what was read, as a Kafka transaction does."""
        summary = self.decoder.take_batch()
        for key, value in self.proofs.records():
            if value is None:
                self.topic.pop(key, None)
            else:
                self.topic[key] = value
        self.committed = (
            summary.position,
            self.next_chunk,
            len(self.sink.messages),
            summary.last_seq + 1,
            len(self.proofs),
        )

    def execute(self, statement: str, truth: Truth | None = None) -> None:
        """Run a statement, and keep what it adds to the binlog."""
        with self.server.connect(database=self.name) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = ''")  # rows may have labels that are dropped
            cursor.execute(statement)
        if truth is not None:
            with closing(self.server.connect(database=self.name)) as connection:
                reader = connection.cursor(DictCursor)
                reader.execute(f"SELECT * FROM {truth.table} WHERE id = {truth.row['id']}")
                [truth.row] = reader.fetchall()
        chunk = capture(self.server, self.position)
        self.position = executed_set(self.server)
        self.chunks.append((chunk, statement, truth))

    def tables(self) -> dict[str, list[str]]:
        """The tables that there are, with their integer columns but the key."""
        query = (
            "SELECT table_name AS t, column_name AS c FROM information_schema.columns WHERE "
            "table_schema = %s AND data_type = 'int' ORDER BY 1, ordinal_position"
        )
        found: dict[str, list[str]] = {}
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(query, (self.name,))
            for table, column in cursor.fetchall():
                found.setdefault(table, []).extend([column] if column != "id" else [])
        return found

    def insert(self) -> None:
        """A row in any table."""
        tables = self.tables()
        table = self.rng.choice(sorted(tables))
        self.rows += 1
        columns = tables[table]
        values = [self.rows] + [self.rng.randint(1, 9) for _ in columns]
        statement = (
            f"INSERT INTO {table} ({', '.join(['id', *columns])}, e) "
            f"VALUES ({', '.join(map(str, values))}, {self.rng.choice(('1', '2', '3'))})"
        )
        self.execute(statement, Truth(table, {"id": self.rows}))

    def define(self) -> None:
        """Any definition that the tables allow."""
        tables = self.tables()
        names = self.rng.sample(sorted(tables), k=min(2, len(tables)))
        self.names += 1
        statement = self.rng.choice(DEFINITIONS)
        needs_two = statement.startswith(("DROP TABLE", "RENAME"))
        if (needs_two and len(names) < 2) or len(tables[names[0]]) < 2:
            statement = CREATE.replace("{t}", "{spare}")
        a, b = self.rng.sample(tables[names[0]], k=2) if "{a}" in statement else ("", "")
        filled = {"t": names[0], "u": names[-1], "a": a, "b": b, "new": f"n{self.names}"}
        # A name that a table had before comes back as well.
        free = [name for name in ("t", "u", "v", f"w{self.names}") if name not in tables]
        self.execute(statement.format(spare=self.rng.choice(free), **filled))

    def read(self) -> None:
        """Let the producer read the next statement: its question is asked now."""
        chunk, _, _ = self.chunks[self.next_chunk]
        try:
            self.decoder.feed(chunk, 0, len(chunk), ALL_ROWS)
        except UnprovedTable as error:
            self.halted = str(error)
            return
        except Rebuild:
            self.cut_off += 1
            self.restart()
            return
        self.next_chunk += 1

    def check(self) -> int:
        """Compare all rows that were read with the truth; return how many there are."""
        if not self.halted:
            self.decoder.take_batch()
        events = [event for event in self.sink.events() if event.after is not None]
        truths = [truth for _, _, truth in self.chunks[: self.next_chunk] if truth is not None]
        for event, truth in zip(events, truths, strict=self.halted == ""):
            assert (event.database, event.table) == (self.name, truth.table)
            assert event.after == truth.row
        return len(events)


def histories(minimal: DatabaseFixture, number: int, lag_max: int) -> Iterator[History]:
    """Random histories, read at every distance behind the server up to `lag_max` statements.

    At distance 0 all that was read is committed before the next statement.
    """
    user = new_account(minimal, GRANTS)
    for seed in range(number):
        history = History(minimal, minimal.new_database(), random.Random(seed), user)
        history.begin()
        for _ in range(STEPS):
            if history.rng.random() < 0.5:
                history.insert()
            else:
                history.define()
            lag = history.rng.randint(0, lag_max)
            while len(history.chunks) - history.next_chunk > lag and not history.halted:
                history.read()
                if not history.halted and (lag_max == 0 or history.rng.random() < 0.3):
                    history.commit()
                if not history.halted and history.rng.random() < 0.15:
                    history.restart()
            if history.halted:
                break
        while history.next_chunk < len(history.chunks) and not history.halted:
            history.read()
        yield history


@pytest.mark.full
def test_no_interleaving_gives_a_wrong_name(minimal: DatabaseFixture) -> None:
    """Wherever the question falls among rows and definitions: the truth, or a halt by name."""
    rows = halts = cut_off = 0
    for history in histories(minimal, HISTORIES, lag_max=6):
        rows += history.check()
        cut_off += history.cut_off
        if history.halted:
            halts += 1
            assert f"table {history.name}." in history.halted
            assert "has executed" in history.halted or "is not on" in history.halted

    assert rows > 100
    assert 5 < halts < HISTORIES - 5
    assert cut_off > 20


@pytest.mark.full
def test_a_stream_that_keeps_up_never_halts(minimal: DatabaseFixture) -> None:
    """Each statement is read before the next one: every row is proved, restarts included."""
    rows = 0
    for history in histories(minimal, HISTORIES, lag_max=0):
        assert history.halted == ""
        rows += history.check()

    assert rows > 200


# What decides about keys, labels and hidden columns; INSERT takes the defaults.
SHAPES: Final = {
    "no key": "(a INT, b INT DEFAULT 1)",
    "two columns": "(a INT, b INT, c INT DEFAULT 1, PRIMARY KEY (c, a))",
    "prefix": "(a VARCHAR(40) DEFAULT 'x', b INT, PRIMARY KEY (b, a(5)))",
    "unique": "(a INT NOT NULL DEFAULT 1, b INT NOT NULL DEFAULT 2, UNIQUE k (b), UNIQUE j (a))",
    "unique with NULL": "(a INT NOT NULL DEFAULT 1, b INT, UNIQUE k (b), UNIQUE j (a))",
    "unique prefix": "(a CHAR(9) NOT NULL DEFAULT 1, b INT NOT NULL, UNIQUE k (a(2)), UNIQUE (b))",
    "hashed": "(a INT, b INT NOT NULL, UNIQUE k (b) USING HASH) ENGINE=MEMORY",
    "expression": "(a INT NOT NULL, b INT NOT NULL, UNIQUE k ((a + 1)), UNIQUE j (b))",
    "generated": "(a INT PRIMARY KEY, b INT AS (a + 1), c INT AS (a + 2) STORED)",
    "invisible": "(a INT PRIMARY KEY, b INT INVISIBLE DEFAULT 5)",
    "labels": (
        "(a ENUM('it''s','b\\\\s','né') CHARACTER SET latin1 DEFAULT 'né', "
        "b SET('汉','x') CHARACTER SET gbk DEFAULT '汉,x', c INT PRIMARY KEY)"
    ),
    "collations": (
        "(a CHAR(9) COLLATE utf8mb4_bin DEFAULT 'x', b CHAR(9) CHARACTER SET latin1 DEFAULT 'y', "
        "c TEXT CHARACTER SET ucs2, d VARBINARY(9) DEFAULT 'z', e INT PRIMARY KEY)"
    ),
    "odd names": "(`a b` INT, `c``d` INT DEFAULT 3, PRIMARY KEY (`c``d`))",
}


def twice(database: DatabaseFixture, name: str, create: str, insert: str, values: Any) -> None:
    """A row under MINIMAL metadata, and the same row under FULL."""
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute(create)
        for metadata in ("MINIMAL", "FULL"):
            cursor.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
            cursor.execute("TRUNCATE TABLE t")
            cursor.execute(insert, values)
        cursor.execute("SET GLOBAL binlog_row_metadata = MINIMAL")


def test_a_proved_table_is_as_a_full_table_map_has_it(minimal: DatabaseFixture) -> None:
    """Types, keys, labels, hidden columns: the records differ in nothing but the time."""
    user = new_account(minimal, GRANTS)
    cases: list[tuple[str, str, Any]] = [
        (f"CREATE TABLE t {columns}", "INSERT INTO t () VALUES ()", None)
        for columns in SHAPES.values()
    ]
    for seed in range(40):
        table = RandomTable(random.Random(seed), Flavor.MYSQL, minimal.version, plain=False)
        cases.append((table.create(), *table.insert([1])))
    for create, insert, values in cases:
        name = minimal.new_database()
        before = executed_set(minimal)
        twice(minimal, name, create, insert, values)
        server = server_as(minimal, user)
        proofs = ProvedTables(server, settings_alone(minimal), ahead_of(server))
        sink = Sink()
        decoder = new_decoder(sink, Flavor.MYSQL, before, proofs=proofs)
        # The TRUNCATE between them defines nothing.
        stream = capture(minimal, before)
        decoder.feed(stream, 0, len(stream), ALL_ROWS)
        decoder.take_batch()
        rows = [m for m, e in zip(sink.messages, sink.events(), strict=True) if e.after is not None]
        [proved, logged] = [e for e in sink.events() if e.after is not None]

        assert len(proofs) == 1, create
        assert proved.after == logged.after, create
        assert rows[0].value[:5] == rows[1].value[:5], create  # the id of the schema
        assert rows[0].key == rows[1].key, create


def test_a_table_that_the_account_may_not_read_halts_with_the_grant(
    minimal: DatabaseFixture,
) -> None:
    """What the catalog does not show to the account is no proof."""
    history = History(minimal, minimal.new_database(), random.Random(0), "")
    history.user = new_account(minimal, "REPLICATION SLAVE, REPLICATION CLIENT ON *.*")
    history.begin()
    history.insert()
    history.read()

    assert f"GRANT SELECT ON `{history.name}`.* TO '{history.user}'@'%';" in history.halted


@pytest.mark.parametrize(
    ("column", "is_shown"),
    [
        ("ENUM('😀','x') CHARACTER SET utf8mb4", False),
        ("SET('x','y😀') CHARACTER SET gb18030", False),
        ("ENUM('x', x'ff') CHARACTER SET binary", False),
        ("ENUM('?','汉') CHARACTER SET utf8mb3", True),
        ("SET('汉 (','x''') CHARACTER SET utf8mb4", True),
    ],
)
def test_labels_that_the_catalog_cannot_show_are_no_proof(
    mysql_a: DatabaseFixture, column: str, is_shown: bool
) -> None:
    """Where it has ? instead of a character, neither rows nor copies have a wrong label."""
    name = mysql_a.new_database()
    settings = settings_alone(mysql_a)
    refused = pytest.raises(CannotCopy, match="labels cannot be read")
    with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, a {column})")
        with nullcontext() if is_shown else refused:
            read_definition(connection, settings, name, "t")
    server = server_as(mysql_a, new_account(mysql_a, GRANTS))
    proofs = ProvedTables(server, settings, ahead_of(server))
    read = MysqlGtidSet.parse(executed_set(mysql_a))
    unproved = pytest.raises(UnprovedTable, match="labels cannot be read")
    with nullcontext() if is_shown else unproved:
        proofs.describe(name, "t", lambda: read, is_new=False)


def test_a_definition_that_is_in_no_binlog_is_noticed_by_its_types(
    minimal: DatabaseFixture,
) -> None:
    """sql_log_bin = 0: what was proved before does not fit the rows, and is asked for again."""
    history = History(
        minimal, minimal.new_database(), random.Random(0), new_account(minimal, GRANTS)
    )
    history.begin()
    history.execute("INSERT INTO t (id) VALUES (1)", Truth("t", {"id": 1}))
    history.read()
    with minimal.connect(database=history.name) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute("ALTER TABLE t ADD COLUMN late BIGINT DEFAULT 9 FIRST")
    history.execute("INSERT INTO t (id) VALUES (2)", Truth("t", {"id": 2}))
    history.read()

    assert history.check() == 2
    assert history.halted == ""


def test_a_skip_or_another_log_makes_what_was_kept_void(minimal: DatabaseFixture) -> None:
    """Definitions may be among what was passed: they are removed, and all is asked again."""
    kept = {("d", "t"): ProvedTable("d", "t", skips=2), ("d", "u"): ProvedTable("d", "u", skips=3)}
    server = server_as(minimal, new_account(minimal, GRANTS))
    found = []
    for skips, count in ((3, 2), (3, 1), (3, None)):
        proofs = ProvedTables(server, settings_alone(minimal), ahead_of(server))
        proofs.begin(kept, skips, count)
        found.append((len(proofs), [key for key, value in proofs.records() if value is None]))

    both = [b'["proved", "d", "t"]', b'["proved", "d", "u"]']
    assert found == [(1, both[:1]), (0, both), (0, both)]


def test_definitions_are_kept_from_a_prepared_transaction(minimal: DatabaseFixture) -> None:
    """The rows of an XA transaction have the names of its PREPARE: locks outlive the session."""
    name = minimal.new_database()
    with minimal.connect(database=name) as connection, connection.cursor() as cursor:
        for statement in (
            CREATE.format(t="t"),
            "XA START 'far'",
            "INSERT INTO t (id) VALUES (1)",
            "XA END 'far'",
            "XA PREPARE 'far'",
        ):
            cursor.execute(statement)
    with minimal.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION lock_wait_timeout = 1")
        with pytest.raises(MySQLError, match="Lock wait timeout"):
            cursor.execute("ALTER TABLE t RENAME COLUMN c1 TO c9")
        cursor.execute("XA ROLLBACK 'far'")


PADDING: Final = "x" * 100_000


def fill(database: DatabaseFixture, name: str, *statements: str) -> None:
    """Statements, each behind more bytes of rows than are read at once."""
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS filler (a LONGTEXT)")
        for statement in statements:
            for _ in range(12):
                cursor.execute("INSERT INTO filler VALUES (%s)", (PADDING,))
            cursor.execute(statement)


def test_what_was_found_ahead_is_kept_for_the_next_session(
    minimal: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that can wait no longer leaves its place; a stop ends the look; nothing is lost."""
    server, looked = server_as(minimal, new_account(minimal, GRANTS)), Looked()
    earlier = MysqlGtidSet.parse(executed_set(minimal))
    name = minimal.new_database()
    read = MysqlGtidSet.parse(executed_set(minimal))
    fill(minimal, name, *(f"CREATE TABLE {table} (a INT)" for table in ("t", "u", "v")))
    executed = MysqlGtidSet.parse(executed_set(minimal))
    said: list[str] = []
    begun: list[MysqlGtidSet] = []
    opened = ReplicationStream.open_rest

    def open_rest(settings: Any, family: Any, position: MysqlGtidSet, own: str) -> Any:
        begun.append(position)
        return opened(settings, family, position, own)

    monkeypatch.setattr(ReplicationStream, "open_rest", open_rest)

    def wait(what: str, _since_s: float) -> bool:
        said.append(what)
        return "transactions so far" not in what

    def of(table: str) -> Any:
        return lambda each: each is None or each.redefined().includes(name, table)

    with pytest.raises(AnswerTooLate, match="are read again"):
        ahead_of(server, looked, wait).first(read, executed, of("nothing"))
    assert looked.up_to is not None
    reached = looked.up_to.to_set()
    assert read != reached
    assert reached.includes(read)
    assert executed.includes(reached)
    assert not reached.includes(executed)
    assert f"binlogs of {server.name}: " in said[-1]

    def stopped(_what: str, _since_s: float) -> bool:
        raise Rebuild("stopped")

    with pytest.raises(Rebuild, match="stopped"):
        ahead_of(server, looked, stopped).first(read, executed, of("nothing"))
    assert ahead_of(server, looked).first(read, executed, of("nothing")) is None
    assert begun == [read, reached, reached]
    # All of it is known now, also to whoever asks from where the first one did.
    for table in ("t", "u", "v"):
        found = ahead_of(server, looked).first(read, executed, of(table))
        assert found is not None
        assert found[1] is not None
        assert found[1].kind() == "CREATE TABLE"
    assert ahead_of(server, looked).first(executed, executed, of("t")) is None
    assert len(begun) == 3
    # A stream from before that place is told all the same.
    assert ahead_of(server, looked).first(earlier, executed, of("v")) is not None
    assert begun[3:] == [earlier]


def test_more_definitions_than_are_kept_are_looked_for_again(
    minimal: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is the same; a session that cannot wait says why; the stream makes room again."""
    monkeypatch.setattr(definitions_ahead, "TOKENS_KEPT_MAX", 20)
    name = minimal.new_database()
    read = MysqlGtidSet.parse(executed_set(minimal))
    fill(minimal, name, "CREATE TABLE t0 (a INT)")
    later = MysqlGtidSet.parse(executed_set(minimal))
    fill(minimal, name, *(f"CREATE TABLE t{n} (a INT)" for n in range(1, 5)))
    executed = MysqlGtidSet.parse(executed_set(minimal))
    server, looked = server_as(minimal, new_account(minimal, GRANTS)), Looked()

    def of(table: str) -> Any:
        return lambda each: each is None or each.redefined().includes(name, table)

    for table in ("t4", "t1", "t4", "t0"):
        assert ahead_of(server, looked).first(read, executed, of(table)) is not None
    assert ahead_of(server, looked).first(read, executed, of("nothing")) is None
    assert looked.is_full
    assert len(looked.found) == 1
    with pytest.raises(Rebuild, match="more definitions than are kept"):
        ahead_of(server, looked, lambda _what, _since_s: False).first(read, executed, of("t9"))

    assert ahead_of(server, looked).first(later, executed, of("t4")) is not None
    assert [later.reaches(each.at) for each in looked.found] == [False]


def test_what_was_found_ahead_is_worth_nothing_where_the_server_lost_it(
    minimal: DatabaseFixture,
) -> None:
    """Its binlogs have the last transaction that was read, at its place and of its time."""
    name = minimal.new_database()
    read = MysqlGtidSet.parse(executed_set(minimal))
    fill(minimal, name, "CREATE TABLE t (a INT)")
    server, looked = server_as(minimal, new_account(minimal, GRANTS)), Looked()
    server.look(is_replica=False)
    executed = MysqlGtidSet.parse(executed_set(minimal))
    ahead_of(server, looked).first(read, executed, lambda _each: False)
    last = looked.last
    assert last is not None

    assert is_at_its_place(server, last)
    assert not is_at_its_place(server, replace(last, commit_us=last.commit_us + 1))
    assert not is_at_its_place(server, replace(last, binlog_pos=last.binlog_pos + 1))
    with minimal.connect() as connection, connection.cursor() as cursor:
        cursor.execute("RESET BINARY LOGS AND GTIDS")
    assert not is_at_its_place(server, last)


@pytest.mark.full
def test_a_table_that_is_locked_is_waited_for(minimal: DatabaseFixture) -> None:
    """Both questions name it while they wait, and end by name when it takes too long."""
    name, user = minimal.new_database(), new_account(minimal)
    fill(minimal, name, "CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    read = MysqlGtidSet.parse(executed_set(minimal))
    server = server_as(minimal, user)
    said: list[str] = []
    with closing(minimal.connect(database=name)) as connection, connection.cursor() as cursor:

        def wait(what: str, _since_s: float) -> bool:
            said.append(what)
            if len(said) == 2:
                cursor.execute("UNLOCK TABLES")
            return True

        cursor.execute("LOCK TABLES t WRITE")
        proofs = ProvedTables(server, settings_alone(minimal), ahead_of(server, wait=wait))
        named = proofs.describe(name, "t", lambda: read, is_new=False)
        assert [column.name for column in named.columns] == ["id", "a"]
        assert set(said) == {
            f"table {name}.t is locked on {server.name}, so its definition cannot be asked for"
        }

        cursor.execute("LOCK TABLES t WRITE")
        looked = Looked()
        cannot_wait = ahead_of(server, looked, lambda _what, _since_s: False)
        with (
            pytest.raises(AnswerTooLate, match=rf"{name}\.t is locked"),
            cannot_wait.locked(name, "t"),
        ):
            pytest.fail("it was locked twice")
        other = f"CREATE TABLE {name}.free (id INT PRIMARY KEY)"
        fill(minimal, name, other)
        with ahead_of(server, looked).locked(name, "free"):
            pass
        with (
            pytest.raises(TableLocked, match=rf"{name}\.t is locked.*\(outage_s\).*XA RECOVER"),
            ahead_of(server, looked, outage_s=LOCK_WAIT_S).locked(name, "t"),
        ):
            pytest.fail("it was locked twice")
        # Over all sessions, also where they ask for tables that are free in between.
        assert looked.locked_s == 2 * LOCK_WAIT_S


@pytest.mark.parametrize(
    ("statement", "is_redefined"),
    [
        ("ALTER TABLE t ADD x INT", True),
        ("ALTER TABLE D.T ADD x INT", True),
        ("ALTER TABLE other.t ADD x INT", False),
        ("ALTER TABLE u RENAME TO t", True),
        ("RENAME TABLE t TO u, v TO t", True),
        ("RENAME TABLE u TO v", False),
        ("DROP TABLE IF EXISTS a, `t`", True),
        ("DROP DATABASE d", True),
        ("DROP SCHEMA IF EXISTS d", True),
        ("DROP DATABASE other", False),
        ("CREATE TABLE t LIKE u", True),
        ("CREATE TABLE u LIKE t", False),
        ("CREATE UNIQUE INDEX i ON t (a)", True),
        ("DROP INDEX i ON t", True),
        ("ALTER TABLE u EXCHANGE PARTITION p WITH TABLE t", True),
        ("/*!50000 ALTER */ TABLE t ADD x INT", True),
        ("ALTER TABLE u ADD x INT /*!50000 , RENAME TO t */", True),
        ("CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET @x = 1", False),
        ("CREATE DEFINER=`a`@`%` PROCEDURE p() ALTER TABLE t ADD x INT", False),
        ("CREATE VIEW v AS SELECT * FROM t", False),
        ("OPTIMIZE TABLE t", False),
        ("TRUNCATE t", False),
        ("DROP TEMPORARY TABLE IF EXISTS t", False),
        ("CREATE DATABASE IF NOT EXISTS d", False),
        ("ALTER SCHEMA d CHARACTER SET latin1", False),
        ("CREATE TABLE IF NOT EXISTS t (a INT)", False),
        ("CREATE OR REPLACE TABLE t (a INT)", True),
        ("/*!50000 CREATE */ TABLE IF NOT EXISTS t (a INT)", True),
        ("ALTER TABLE t DISABLE KEYS", False),
        ("/*!40000 ALTER TABLE `t` ENABLE KEYS */", False),
        ("ALTER TABLE t DISABLE KEYS, ADD x INT", True),
        ("ALTER TABLE d.t ADD PARTITION (PARTITION p VALUES LESS THAN (5))", False),
        ("ALTER TABLE t DROP PARTITION p", False),
        ("ALTER TABLE t DROP `partition`", True),
        ("ALTER TABLE t ADD PARTITION p /*!50000 , ADD x INT */", True),
        ("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u", True),
        ("ALTER TABLE t PARTITION BY HASH (a)", True),
        ("ALTER TABLE t AUTO_INCREMENT = 5", False),
        ("ALTER TABLE t COMMENT 'x'", False),
        ("ALTER TABLE t AUTO_INCREMENT = 5, ADD x INT", True),
        ("ALTER TABLE t COMMENT = 'x' ADD x INT", True),
        ("ALTER TABLE u COMMENT 'open", True),
    ],
)
def test_which_definitions_end_a_proof(statement: str, is_redefined: bool) -> None:
    """By the tables that it changes; where that is not certain, by all its words."""
    redefined = Definition(Statement(statement.encode()), "d").redefined()

    assert redefined.includes("d", "t") is is_redefined


def test_an_expression_that_could_be_the_key_is_no_proof() -> None:
    """No catalog names the hidden column of an expression that is never NULL."""
    part = {"non_unique": 0, "key_name": "k", "sub_part": None, "null": "", "column_name": None}

    with pytest.raises(ValueError, match="expression"):
        logged_key(["a"], [part])
