"""Generated columns on the newest MariaDB, which logs them with an INSERT and with no UPDATE."""

from contextlib import ExitStack

import pytest

from producers.decoder import HiddenType
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.postgres_servers import PostgresFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.decoding import (
    ALL_ROWS,
    Sink,
    catalog_of,
    decode,
    new_decoder,
)
from tests.producers.session.producing import producing, settings_of
from tests.producers.versions.other_servers import NewMariadb
from tests.sinks.database.followed import Followed
from tests.sinks.database.serving import create_databases, serve
from tests.sinks.database.verified import Verify, feeding

SERVER = NewMariadb
VERSION = (11, 8, 0)
TABLE = (
    "CREATE TABLE t(id INT PRIMARY KEY, a INT, s INT GENERATED ALWAYS AS (a + 1) STORED, "
    "v INT GENERATED ALWAYS AS (a + 2) VIRTUAL)"
)


def test_a_sink_never_keeps_an_old_value_of_one(
    server: DatabaseFixture, postgres: PostgresFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """A second database has none, whatever the row image is, until it is an ordinary column."""
    create_databases({"-": server}, keyspace)
    serve(kafka, keyspace, {"-": server})
    settings = settings_of(server, kafka, keyspace, shard="-")
    target = Followed(postgres, deletes="hard", follower=keyspace)
    target.database.prepare()
    updates = [
        statement
        for number, image in enumerate(("FULL", "MINIMAL", "NOBLOB", "FULL_NODUP"))
        for statement in (
            f"SET binlog_row_image = {image}",
            f"INSERT INTO t(id, a) VALUES ({number}, 1)",
            f"UPDATE t SET a = 20 WHERE id = {number}",
        )
    ]
    with ExitStack() as running:
        running.enter_context(producing(settings))
        running.enter_context(feeding(target.database, keyspace, settings.kafka))
        verify = Verify(target, [settings])
        run_statements(server, keyspace, (TABLE, *updates))
        verify.until_table("t")
        found = verify()["t"]
        [known] = target.database.known().values()
        run_statements(
            server,
            keyspace,
            (
                "ALTER TABLE t MODIFY s INT",
                "DELETE FROM t",
                "INSERT INTO t(id, a, s) VALUES (9, 1, 5)",
            ),
        )
        altered = verify()["t"]

    assert [column.name for column in known.shape.columns] == ["id", "a"]
    assert (found.rows, found.named) == (4, ())
    assert (altered.rows, altered.named) == (1, ())
    assert target.rows(f'SELECT id, a, s FROM "{keyspace}".t') == [(9, 1, 5)]


@pytest.mark.parametrize("since", ["ALTER TABLE t MODIFY s INT", "DROP TABLE t"])
def test_images_that_show_one_stop_where_the_catalog_does_not(
    server: DatabaseFixture, since: str
) -> None:
    """A column that was generated when its rows were logged, and is not now, is not unchanged."""
    name, before = server.new_database(), executed_set(server)
    run_statements(server, name, (TABLE, "INSERT INTO t(id, a) VALUES (1, 10)"))
    run_statements(server, name, ("UPDATE t SET a = 20", since))

    with pytest.raises(HiddenType, match=rf"{name}\.t lack s.* altered or dropped .* filter"):
        decode(capture(server, before), server.flavor, before, catalog=catalog_of(server))


def test_a_change_that_no_binlog_has_stops_until_the_server_is_asked_again(
    server: DatabaseFixture,
) -> None:
    """An ordinary column becomes a generated one in the same table map, without a statement."""
    name, before = server.new_database(), executed_set(server)
    sink, later = Sink(), Sink()
    decoder = new_decoder(sink, server.flavor, before, catalog=catalog_of(server))
    run_statements(server, name, ("CREATE TABLE t(id INT PRIMARY KEY, a INT, s INT)",))
    run_statements(server, name, ("INSERT INTO t VALUES (1, 2, 3)",))
    stream = capture(server, before)
    decoder.feed(stream, 0, len(stream), ALL_ROWS)
    position = decoder.take_batch().position
    silently = ("SET sql_log_bin = 0", "ALTER TABLE t MODIFY s INT AS (a + 1) STORED")
    run_statements(server, name, (*silently, "SET sql_log_bin = 1", "UPDATE t SET a = 5"))
    stream = capture(server, position)

    with pytest.raises(HiddenType, match="start the producer again"):
        decoder.feed(stream, 0, len(stream), ALL_ROWS)
    again = new_decoder(later, server.flavor, position, catalog=catalog_of(server))
    again.feed(stream, 0, len(stream), ALL_ROWS)
    again.take_batch()
    assert [event.after for event in later.events()] == [{"id": 1, "a": 5}]
