"""`verify` finds what differs from the sources, and only that."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from databases.row_comparison import Difference
from databases.table_cursor import TableCursor
from event_token.errors import Retry
from shardstream.commands.sinks import verify as verify_command
from shardstream.commands.sinks.verify import ShardReader
from shardstream.local.kafka_cluster import KafkaCluster
from sinks.database.compared_table import Name, ShardPart
from sinks.database.verification import BEGINNINGS_MAX
from tests.database_servers import DatabaseFixture
from tests.producers.copy.traffic import TABLES, Traffic
from tests.producers.session.producing import producing, settings_of
from tests.shardstream.command_line import run, write_settings
from tests.sinks.database.followed import Followed, TargetServer
from tests.sinks.database.serving import create_databases, fill, serve
from tests.sinks.database.verified import Verify, feeding

pytestmark = pytest.mark.full

TYPES = (
    "id BIGINT PRIMARY KEY, name VARCHAR(40), price DECIMAL(10,2), at DATETIME(3), "
    "day DATE, kind ENUM('a','b'), tags SET('x','y'), ratio FLOAT, raw VARBINARY(8), "
    "later TIME(2), twice BIGINT GENERATED ALWAYS AS (id * 2) VIRTUAL, "
    "thrice BIGINT GENERATED ALWAYS AS (id * 3) STORED"
)

KEYS = 40
# MySQL creates and drops a staging table per table and batch, for which it takes its time.
PAUSE_S = 0.05


@pytest.fixture
def shards(
    mysql_a: DatabaseFixture, mariadb_a: DatabaseFixture, keyspace: str
) -> dict[str, DatabaseFixture]:
    """A shard of each family with an empty database."""
    found = {"-80": mysql_a, "80-": mariadb_a}
    create_databases(found, keyspace)
    return found


@pytest.fixture
def verify(
    shards: dict[str, DatabaseFixture],
    kafka: KafkaCluster,
    keyspace: str,
    target_server: TargetServer,
    request: pytest.FixtureRequest,
) -> Iterator[Verify]:
    """A target that follows these shards while the test runs; its `deletes` is a parameter."""
    serve(kafka, keyspace, shards)
    settings = [
        settings_of(database, kafka, keyspace, shard=shard) for shard, database in shards.items()
    ]
    followed = Followed(target_server, deletes=request.param, follower=keyspace)
    followed.database.prepare()
    with ExitStack() as running:
        for each in settings:
            running.enter_context(producing(each))
        running.enter_context(feeding(followed.database, keyspace, settings[0].kafka))
        yield Verify(followed, settings)


def execute(database: DatabaseFixture, name: str, *statements: str) -> None:
    """Run statements on a source."""
    with database.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
        for statement in statements:
            cursor.execute(statement)


def row(number: int, more: str = "'2024-02-30'") -> str:
    """Insert a row with a value of each type."""
    return (
        f"INSERT INTO items (id, name, price, at, day, kind, tags, ratio, raw, later) VALUES "
        f"({number}, 'n\u00fc{number}', {number}.5, '2024-01-02 03:04:05.678', {more}, 'b', 'x,y', "
        f"0.1, X'00FF', '-12:34:56.78')"
    )


@pytest.mark.parametrize(("verify", "target_server"), [("hard", "mysql_b")], indirect=True)
def test_a_key_that_is_turned_round_meanwhile_hides_no_missing_row(
    verify: Verify,
    shards: dict[str, DatabaseFixture],
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table that is altered meanwhile is compared again, and named if that goes on."""
    source = shards["-80"]
    values = ", ".join(f"({i})" for i in range(300))
    execute(source, keyspace, "CREATE TABLE t (id INT PRIMARY KEY)")
    execute(source, keyspace, f"INSERT INTO t VALUES {values}")
    verify.until_table("t")
    assert verify()["t"].differing == 0
    verify.damage(keyspace, "DELETE FROM t WHERE id IN (2, 150, 298)")
    alters: list[str] = []
    part = ShardReader.part

    def part_and_alter(reader: ShardReader, table: Name, after: TableCursor | None) -> ShardPart:
        found = part(reader, table, after)
        if after is None and reader.shard == "-80" and alters:
            # The log has nothing of it, so the target goes on.
            key = f"ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id {alters.pop()})"
            execute(source, keyspace, "SET sql_log_bin = 0", key)
        return found

    monkeypatch.setattr(verify_command, "PART_ROWS", 100)
    monkeypatch.setattr(ShardReader, "part", part_and_alter)
    alters.append("DESC")
    found = verify()["t"]
    alters += ["DESC", "ASC"] * BEGINNINGS_MAX
    with pytest.raises(Retry, match=r"t has another definition now.*verify it while nobody"):
        verify()

    assert (found.rows, sorted(each.key for each in found.named)) == (
        300,
        ["id=150", "id=2", "id=298"],
    )


def damages(homes: str) -> tuple[str, ...]:
    """Statements that change a target; `homes`: its table of hidden rows."""
    return (
        "UPDATE items SET price = 9 WHERE id = 102",
        "UPDATE items SET name = NULL, later = NULL WHERE id = 103",
        "DELETE FROM items WHERE id = 104",
        "INSERT INTO items (id, name) VALUES (50, 'by hand')",
        "UPDATE items SET id = 60 WHERE id = 6",
        (
            f"INSERT INTO _shardstream.{homes} (id, _key, _shard, _seq, _time_us, _deleted) "
            f"VALUES (70, 'key', '80-', 1, 1, FALSE)"
        ),
    )


@pytest.mark.parametrize(
    ("verify", "target_server"),
    [("soft", "postgres"), ("hard", "mysql_b")],
    indirect=True,
)
def test_damage_is_found_and_nothing_else(
    verify: Verify,
    shards: dict[str, DatabaseFixture],
    kafka: KafkaCluster,
    keyspace: str,
    tmp_path: Path,
) -> None:
    """Missing, extra and changed rows are named; rows of all types that are right are not.

    While rows of all kinds of keys change and move, nothing but changing rows is seen.
    """
    for number, database in enumerate(shards.values()):
        rows = [row(100 * number + i) for i in range(1, 8)]
        execute(database, keyspace, f"CREATE TABLE items ({TYPES})", *rows)
    execute(
        shards["-80"],
        keyspace,
        # MariaDB has no JSON; the other shard lacks the table.
        "CREATE TABLE docs (id INT PRIMARY KEY, doc JSON)",
        """INSERT INTO docs VALUES (1, '{"a": [1, null]}')""",
        "DELETE FROM items WHERE id = 7",
        # Goes on in price__v2; rows that do not change keep price, and raw.
        "ALTER TABLE items MODIFY price VARCHAR(20), DROP COLUMN raw",
        "UPDATE items SET price = 'one' WHERE id = 1",
    )
    execute(shards["80-"], keyspace, "ALTER TABLE items ADD COLUMN unknown INT")
    traffic = Traffic(shards["-80"], keyspace, keys=KEYS, seed=7, pause_s=PAUSE_S)
    fill(shards["80-"], keyspace)
    for table in (*TABLES, "docs"):
        verify.until_table(table)
    with traffic:
        busy = verify()
    quiet = verify()

    for each in (busy, quiet):
        assert sorted(each) == sorted((*TABLES, "docs", "items"))
        assert [table.named for table in each.values()] == [()] * len(each)
    assert all(quiet[name].rows > 40 and quiet[name].changing == 0 for name in TABLES)
    counts = [
        (each.rows, each.differing, each.changing) for each in (quiet["docs"], quiet["items"])
    ]
    assert counts == [(1, 0, 0), (13, 0, 0)]
    assert verify.leftovers == []

    for damage in damages(verify.homes("items")):
        verify.damage(keyspace, damage)
    found = verify()["items"]
    config = str(write_settings(tmp_path, kafka.bootstrap_servers, keyspace, shards))
    arguments = ("--to", verify.followed.url, "--config", config, "--table", f"{keyspace}.items")
    done = run("database", "verify", keyspace, *arguments, "--json")

    items = f"{keyspace}.items"
    assert sorted(found.named, key=lambda each: each.key) == [
        Difference(items, "80-", "id=102", "it differs in price", ("price",)),
        Difference(
            f"{keyspace}.items", "80-", "id=103", "it differs in name, later", ("name", "later")
        ),
        Difference(items, "80-", "id=104", "it is missing in the target"),
        Difference(items, "unknown", "id=50", "it is in the target alone"),
        Difference(items, "-80", "id=6", "it is missing in the target"),
        Difference(items, "-80", "id=60", "it is in the target alone"),
        Difference(
            f"{keyspace}.items", "80-", "id=70", "it is in the target alone, hidden by another row"
        ),
    ]
    assert (done.returncode, json.loads(done.stdout)["differing"]) == (1, 7), done.stderr
