"""GTID sets against the real servers, as a second opinion on text and operations."""

from random import Random

from event_token import Flavor, GtidError, MariadbGtidSet, MysqlGtidSet, parse_gtid_set
from tests.database_servers import DatabaseFixture
from tests.event_token.strategies import TAGS, UUIDS, mysql_set

PAIRS = 300
U = UUIDS[1]

QUERY = """
    SELECT GTID_SUBTRACT(%(a)s, ''), GTID_SUBTRACT(%(a)s, %(b)s), GTID_SUBSET(%(b)s, %(a)s)
"""


def _random_set(random: Random) -> MysqlGtidSet:
    gtids = [
        (random.choice(UUIDS), random.choice(TAGS), random.randint(1, 12))
        for _ in range(random.randint(0, 60))
    ]
    return mysql_set(frozenset(gtids))


def test_mysql_prints_and_computes_the_same(mysql_a: DatabaseFixture) -> None:
    """MySQL's text, difference and inclusion are ours, for tags and gaps of all kinds."""
    random = Random(4)
    with mysql_a.connect() as connection, connection.cursor() as cursor:
        for _ in range(PAIRS):
            a, b = _random_set(random), _random_set(random)
            if random.random() < 0.3:
                b = a.intersection(b)
            cursor.execute(QUERY, {"a": str(a), "b": str(b)})
            printed, difference, included = cursor.fetchone()

            assert _one_line(printed) == str(a)
            assert _one_line(difference) == str(a.subtract(b))
            assert bool(included) == a.includes(b)


def test_mysql_normalises_the_same(mysql_a: DatabaseFixture) -> None:
    """Disorder, overlaps, spaces and upper case come to the same text on both sides."""
    texts = (
        f"{U.upper()}:7:1-3:2-5",
        f"{U}:Tag_B:1-3:1:_a:9,{UUIDS[2]}:3,\n{U}:5",
        f" {U} : 1 - 5 : tag : 7 ",
        f"{U}:9223372036854775806",
        f"{U}:{'t' * 32}:1",
    )
    with mysql_a.connect() as connection, connection.cursor() as cursor:
        for text in texts:
            cursor.execute("SELECT GTID_SUBTRACT(%s, '')", (text,))
            assert _one_line(cursor.fetchone()[0]) == str(MysqlGtidSet.parse(text))


def test_mysql_refuses_what_we_refuse_as_too_large(mysql_a: DatabaseFixture) -> None:
    """The bounds of numbers and tags are the server's own."""
    with mysql_a.connect() as connection, connection.cursor() as cursor:
        for text in (f"{U}:9223372036854775807", f"{U}:0", f"{U}:{'t' * 33}:1"):
            # The server answers NULL with a warning, or an error, depending on its mode.
            try:
                cursor.execute("SELECT GTID_SUBTRACT(%s, '')", (text,))
                answer = cursor.fetchone()[0]
            except connection.Error:
                answer = None
            assert answer is None
            assert _is_refused(text)


def test_executed_positions_parse(database: DatabaseFixture) -> None:
    """What a server says that it has executed comes back from our text unchanged."""
    flavor = Flavor(database.flavor)
    variable = "gtid_executed" if flavor is Flavor.MYSQL else "gtid_binlog_pos"
    name = database.new_database()
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
        cursor.execute(f"SELECT @@GLOBAL.{variable}")
        before = str(cursor.fetchone()[0])
        cursor.execute(f"INSERT INTO {name}.t VALUES (1)")
        connection.commit()
        cursor.execute(f"SELECT @@GLOBAL.{variable}")
        after = str(cursor.fetchone()[0])

    position = parse_gtid_set(after, flavor)
    assert str(position) == _one_line(after)
    assert position.includes(parse_gtid_set(before, flavor))
    assert not position.subtract(parse_gtid_set(before, flavor)).is_empty


def test_mariadb_positions_of_a_binlog_offset(mariadb_a: DatabaseFixture) -> None:
    """The position that MariaDB gives for the end of its binlog is the one executed."""
    with mariadb_a.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.gtid_binlog_pos")
        position = MariadbGtidSet.parse(cursor.fetchone()[0])
        cursor.execute("SHOW MASTER STATUS")
        file, offset = cursor.fetchone()[:2]
        cursor.execute("SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))
        assert MariadbGtidSet.parse(cursor.fetchone()[0]) == position


def _one_line(text: str) -> str:
    return text.replace("\n", "")


def _is_refused(text: str) -> bool:
    try:
        MysqlGtidSet.parse(text)
    except GtidError:
        return True
    return False
