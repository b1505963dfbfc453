"""What a server has executed is more than its binlogs hold: backups, and domains that are gone."""

import re
from dataclasses import replace

import pytest

from databases.sql import rows
from producers.errors import BinlogPurged, HistoryRewritten, ServerBehindLog
from producers.settings import ShardProducerSettings
from producers.skip.lost_transactions import skip_lost
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.shard_removal import Reset, run_reset
from tests.database_servers import DatabaseFixture, StartServer
from tests.producers.copy.copying import start, wait_state
from tests.producers.servers.backups import restore, write_domain
from tests.producers.servers.power_cut import clock_s
from tests.producers.servers.replication import (
    executed,
    follow,
    promote,
    purge_to,
    start_pair,
    statements,
    wait_same,
)
from tests.producers.session.producing import (
    RunningProducer,
    check_log,
    check_progress,
    producing,
    read_log,
    replay,
    server_of,
    settings_of,
    wait_caught_up,
)
from tests.producers.skip.skipping import ids
from tests.waiting import wait_for
from topics.progress.copy_topic import CopyState
from topics.records.skip_record import Skip
from topics.records.vevent import EventType, Op

pytestmark = pytest.mark.full

SOURCE = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
INSERT = "INSERT INTO shop.t VALUES ({})"


def begin(database: DatabaseFixture, kafka: KafkaCluster, keyspace: str) -> ShardProducerSettings:
    """A log that has read row 1 of `shop.t`, whose producer has stopped."""
    settings = settings_of(database, kafka, keyspace, start="earliest")
    texts = ("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)", INSERT.format(1))
    statements(database, *texts)
    catch_up(settings)
    return settings


def catch_up(settings: ShardProducerSettings) -> None:
    """Let a producer read all that is there."""
    with producing(settings):
        wait_caught_up(settings)


def logged(settings: ShardProducerSettings) -> list[int]:
    """The rows of `shop.t` in a log that is sound."""
    log = read_log(settings)
    check_log(log)
    check_progress(log)
    return sorted(replay(log, "shop", "t"))


def copy_of(
    source: DatabaseFixture, target: DatabaseFixture, settings: ShardProducerSettings
) -> ShardProducerSettings:
    """The shard on a server that was made from a backup of its primary."""
    restore(source, target, "shop", "_shardstream")
    return replace(settings, servers=(server_of(target),))


def test_domain_of_a_backup_that_the_log_has_not_read_stops_the_shard(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """F44: Row 2 came to the promoted server with the backup, and no binlog of that server has it.

    A new log, as the message says, has the row by a copy, though the server stands idle meanwhile.
    """
    first, second = start_mariadb.together(2)
    settings = begin(first, kafka, keyspace)
    write_domain(first, 5, INSERT.format(2))
    on_second = copy_of(first, second, settings)
    first.server.kill()
    statements(second, INSERT.format(3))

    error = RunningProducer(on_second).wait_error()

    assert isinstance(error, BinlogPurged)
    assert "5-9100-1" in str(error)
    assert f"shardstream topics reset {keyspace} - --reason TEXT" in str(error)
    assert logged(settings) == [1]
    run_reset(Reset(settings.kafka, settings.shard_topics, ""), "row 2 is in no binlog")
    with producing(replace(on_second, start="latest")):
        start(on_second, "shop.t")
        wait_state(on_second, CopyState.COMPLETED)
    events = read_log(settings).events
    assert [e.after["id"] for e in events if e.op is Op.READ and e.after] == [1, 2, 3]
    assert "5-9100-1" in str(events[-1].token.position)


def test_idle_server_of_a_backup_continues_a_log_that_has_all_of_it(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """F44: It is followed as a replica and as a primary, before and after its first transaction."""
    first, second = start_mariadb.together(2)
    settings = begin(first, kafka, keyspace)
    write_domain(first, 5, INSERT.format(2))
    catch_up(settings)
    on_second = copy_of(first, second, settings)
    first.server.kill()
    statements(second, "SET GLOBAL read_only = ON")
    catch_up(on_second)
    statements(second, "SET GLOBAL read_only = OFF")
    with producing(on_second):
        wait_caught_up(on_second)
        statements(second, INSERT.format(3))
        wait_caught_up(on_second)
    catch_up(on_second)

    assert logged(settings) == [1, 2, 3]


def test_log_goes_on_where_the_binlogs_of_a_backup_begin_right_behind_it(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """The promoted server has logged what the lost primary wrote next, and not what is logged."""
    first, second = start_mariadb.together(2)
    settings = begin(first, kafka, keyspace)
    on_second = copy_of(first, second, settings)
    follow(second, first)
    statements(first, INSERT.format(2))
    wait_same(second, first)
    first.server.kill()
    promote(second)
    statements(second, INSERT.format(3))

    catch_up(on_second)
    catch_up(on_second)

    assert logged(settings) == [1, 2, 3]


def test_new_log_on_a_server_of_a_backup_holds_what_came_with_it(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """A server that still has the binlogs from before the backup sends none of them."""
    first, second = start_mariadb.together(2)
    write_domain(first, 5, "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
    write_domain(first, 5, INSERT.format(1))
    statements(first, "CREATE DATABASE _shardstream", INSERT.format(2))
    settings = settings_of(first, kafka, keyspace, start="latest")
    on_second = copy_of(first, second, settings)
    follow(second, first)
    catch_up(on_second)
    statements(first, INSERT.format(3))
    wait_same(second, first)

    catch_up(replace(settings, servers=(server_of(first), server_of(second))))

    assert logged(settings) == [3]


def test_domain_that_was_deleted_behind_the_log_does_not_stop_it(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """F44: The log has all of the domain, and its server forgot it."""
    database = start_mariadb()
    settings = begin(database, kafka, keyspace)
    write_domain(database, 5, INSERT.format(2))
    catch_up(settings)
    purge_all(database)
    statements(database, "FLUSH BINARY LOGS DELETE_DOMAIN_ID = (5)")
    database.server.stop()
    database.server.start()
    catch_up(settings)
    statements(database, INSERT.format(3))
    catch_up(settings)
    purge_all(database)  # by now the domain is in no GTID list either
    with producing(settings):
        wait_caught_up(settings)
        statements(database, INSERT.format(4))
        wait_caught_up(settings)
    catch_up(settings)

    assert executed(database).startswith("0-")
    assert logged(settings) == [1, 2, 3, 4]


def test_domain_that_a_failover_lost_as_a_whole_is_given_up_by_the_command_that_is_named(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """The new primary has no trace of it, and takes the domain's numbers again from the first."""
    first, second = start_pair(start_mariadb)
    settings = begin(first, kafka, keyspace)
    wait_same(second, first)
    statements(second, "STOP SLAVE")
    write_domain(first, 5, INSERT.format(2))
    catch_up(settings)
    first.server.kill()
    promote(second)
    write_domain(second, 7, INSERT.format(3))
    on_second = replace(settings, servers=(server_of(second),))

    error = RunningProducer(on_second).wait_error()

    assert isinstance(error, ServerBehindLog)
    assert "DELETE_DOMAIN_ID" in str(error)
    skip_lost(on_second, named_lost(error, keyspace), "disk lost")
    with producing(on_second):
        write_domain(second, 5, INSERT.format(4))
        wait_caught_up(on_second)
    assert ids(read_log(settings).events) == [1, 2, "skip", 3, 4]


def named_lost(error: BaseException, keyspace: str) -> str:
    """The GTIDs in the command that a message names."""
    [gtids] = re.findall(rf"shardstream skip {keyspace} - --lost (\S+) --reason", str(error))
    return str(gtids)


@pytest.mark.parametrize("log_begins", ["before it", "behind it", "behind its purge"])
def test_deleted_domain_that_is_used_again_is_not_taken_for_the_former_one(
    log_begins: str, start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """Its first numbers are those of the log; they are logged once the operator has decided."""
    database = start_mariadb()
    settings = begin(database, kafka, keyspace)
    write_domain(database, 5, INSERT.format(2), INSERT.format(3))
    if log_begins == "before it":
        catch_up(settings)
    else:
        run_reset(Reset(settings.kafka, settings.shard_topics, ""), "another log")
        settings = replace(settings, start="latest")
    if log_begins == "behind it":
        catch_up(settings)
    purge_all(database)
    catch_up(settings)
    written_s = clock_s(database)
    statements(database, "FLUSH BINARY LOGS DELETE_DOMAIN_ID = (5)")
    purge_all(database)
    wait_for("another second begins", lambda: clock_s(database) > written_s)
    write_domain(database, 5, *(INSERT.format(i) for i in (11, 12, 13)))
    statements(database, INSERT.format(14))

    error = RunningProducer(settings).wait_error()

    assert isinstance(error, HistoryRewritten)
    held = ids(read_log(settings).events)
    assert held == ([1, 2, 3] if log_begins == "before it" else [])
    skip_lost(settings, named_lost(error, keyspace), "the domain was deleted")
    catch_up(settings)
    events = read_log(settings).events
    assert ids(events) == [*held, "skip", 11, 12, 13, 14]
    [skip] = [Skip.of(event) for event in events if event.type is EventType.SKIP]
    assert skip.gtids.endswith("5-9100-2")


def test_mysql_gtid_below_others_that_has_another_transaction_is_noticed(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """A server that was set up again has the log's last transaction, and not one before a hole."""
    database = start_mysql()
    settings = begin(database, kafka, keyspace)
    for number, row in ((2, 2), (5, 3)):
        under_gtid(database, f"{SOURCE}:{number}", INSERT.format(row))
    statements(database, INSERT.format(4))
    catch_up(settings)
    own = executed(database).replace(f"{SOURCE}:2:5", "").strip(",")
    statements(
        database, "RESET BINARY LOGS AND GTIDS", f"SET GLOBAL gtid_purged = '{own},{SOURCE}:5'"
    )
    under_gtid(database, f"{SOURCE}:2", INSERT.format(11))
    statements(database, INSERT.format(12))

    error = RunningProducer(settings).wait_error()

    assert isinstance(error, HistoryRewritten)
    assert f"--lost {SOURCE}:2 --reason" in str(error)
    assert logged(settings) == [1, 2, 3, 4]
    skip_lost(settings, f"{SOURCE}:2", "the server was set up again")
    catch_up(settings)
    assert ids(read_log(settings).events) == [1, 2, 3, 4, "skip", 11, 12]


def under_gtid(database: DatabaseFixture, gtid: str, text: str) -> None:
    """Run a statement of MySQL under a GTID that the session chooses."""
    statements(database, f"SET SESSION gtid_next = '{gtid}'", text)


def purge_all(database: DatabaseFixture) -> None:
    """Purge all binlogs but a new one."""
    statements(database, "FLUSH BINARY LOGS")
    with database.connect() as connection:
        newest = rows(connection, "SHOW BINARY LOGS")[-1][0]
    purge_to(database, newest)
