"""Database servers as managed services have them: what is refused, and a life of their streams."""

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from credentials.secret import Secret
from databases.platforms import platform_of
from databases.server import Platform
from databases.sql import rows
from event_token import Flavor
from producers.errors import BinlogPurged
from producers.preflight import shard_findings
from producers.session import supervisor
from producers.settings import ServerSettings, ShardProducerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture, StartServer
from tests.faults.sessions import PASSWORD, end_sessions, new_account
from tests.managed.database_services import (
    AURORA_MYSQL,
    AZURE_MYSQL,
    CLOUD_SQL,
    NOTHING,
    RDS_MARIADB,
    RDS_MYSQL,
    REFUSAL,
    Service,
    at,
    bookkeeping,
    make_tables,
    purge_as_rds,
    served,
)
from tests.managed.kafka_services import MIB
from tests.managed.results import RecordProperty, measured, refused
from tests.producers.copy.copying import (
    check_changes_once,
    check_copied_log,
    replay_upserts,
    server_rows,
    start,
    wait_state,
)
from tests.producers.servers.replication import promote, start_pair, statements, wait_same
from tests.producers.session.producing import (
    RunningProducer,
    check_progress,
    producing,
    progress_of,
    read_log,
    server_of,
    settings_alone,
    settings_of,
    wait_caught_up,
)
from tests.producers.session.workload import Workload, process
from tests.topics.shard_writer import limit_messages, provision
from tests.waiting import wait_for
from topics.kafka.topic_settings import RECORD_BYTES_MIN
from topics.progress.copy_topic import CopyState

COPIED_ROWS = 2_000
ROWS_BEFORE_KILL = 30
LARGE_BYTES = 4 * MIB


def take_over(replica: DatabaseFixture, primary: DatabaseFixture) -> None:
    """Give the producer's account of a server to its replica."""
    statements(
        replica,
        "SET SESSION sql_log_bin = 0",
        f"CREATE USER IF NOT EXISTS '{primary.user}'@'127.0.0.1'",
        f"ALTER USER '{primary.user}'@'127.0.0.1' IDENTIFIED BY '{primary.password}'",
    )


def waits_for_password(producer: RunningProducer) -> bool:
    """Whether a login was refused, and what people read says how that ends."""
    producer.check()
    return any("a password_file is read" in status.note for status in list(producer.statuses))


def findings(settings: ShardProducerSettings) -> tuple[list[str], list[str]]:
    """What preflight says: problems, and warnings without the shard."""
    found = shard_findings(settings, with_tables=False)
    before = f"{settings.keyspace}.{settings.shard}: "
    return [str(p) for p in found.problems], [w.removeprefix(before) for w in found.warnings]


@pytest.mark.full
@pytest.mark.parametrize(
    "service",
    [
        RDS_MYSQL,
        AZURE_MYSQL,
        RDS_MARIADB,
        AURORA_MYSQL,
        CLOUD_SQL,
    ],
    ids=str,
)
def test_nothing_is_lost_in_the_life_of_a_stream(
    request: pytest.FixtureRequest,
    kafka: KafkaCluster,
    keyspace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    service: Service,
    record_property: RecordProperty,
) -> None:
    """Copy, stream, a large row, kill, another password, failover; beside the service's statements.

    To a stream Aurora is as RDS, and Cloud SQL as a plain server; both have their case. Each
    row comes once, and where the service keeps MINIMAL metadata its names are proved.
    """
    monkeypatch.setattr(supervisor, "LOGIN_PAUSE_S", 0.2)
    start_server: StartServer = request.getfixturevalue(f"start_{service.flavor.value}")
    primary, replica = start_pair(start_server)
    for each in (primary, replica):
        make_tables(each, service)
    user, account, created = new_account(primary)
    name = primary.new_database()
    values = ", ".join(f"({i}, {i})" for i in range(COPIED_ROWS))
    statements(
        primary,
        *created,  # on the replica as well
        f"CREATE TABLE {name}.old (id INT PRIMARY KEY, v INT)",
        f"INSERT INTO {name}.old VALUES {values}",
        f"CREATE TABLE {name}.large (id INT PRIMARY KEY, v LONGTEXT)",
    )
    text = random.Random(1).randbytes(LARGE_BYTES // 2).hex()
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    with served(primary, service) as address:
        server = replace(at(address, primary), user=user, password=Secret(user, password))
        settings = settings_of(
            primary, kafka, keyspace, servers=(server,), metadata=service.metadata
        )
        first = replace(settings, servers=(replace(server, password=PASSWORD),))
        provision(settings.kafka, keyspace, [settings.shard])
        limit_messages(settings.kafka, settings.shard_topics.log, RECORD_BYTES_MIN)
        with bookkeeping(primary, service), process(first) as producer:
            producer.wait_line("streaming")
            with Workload(primary, name) as load:
                start(settings, f"{name}.old")
                wait_state(settings, CopyState.COMPLETED)
                statements(primary, f"INSERT INTO {name}.large VALUES (1, '{text}')")
                seen = load.committed
                wait_for("rows go through", lambda: load.committed > seen + ROWS_BEFORE_KILL)
                producer.kill()
                running = RunningProducer(settings)
                running.wait_streaming()
                wait_for("rows go through", lambda: running.rows > ROWS_BEFORE_KILL)
                statements(primary, f"ALTER USER {account} IDENTIFIED BY '{PASSWORD}-2'")
                end_sessions(primary, user)
                wait_for("the password is refused", lambda: waits_for_password(running))
                password.write_text(f"{PASSWORD}-2")
                wait_caught_up(settings)
        wait_same(replica, primary)
        primary.server.kill()
        promote(replica)
        address.move_to(replica)
        statements(replica, f"INSERT INTO {name}.old VALUES (-1, 1)")
        wait_caught_up(settings)
        running.end()
    log = read_log(settings)

    check_copied_log(log)
    check_changes_once(log)
    check_progress(log)
    for table in ("old", "t", "large"):
        is_same = replay_upserts(log, name, table) == server_rows(replica, name, table, ["id"])
        assert is_same, table  # to print how such rows differ takes minutes
    [large] = (each for progress in log.progress for each in progress.in_parts)
    assert large.parts > 1
    last = progress_of(settings)
    assert last is not None
    assert (last.passed is not None) == bool(service.bookkeeping)
    assert (last.proved is not None) == (service.metadata == "proved")
    steps = ("start", "copy", "stream", "kill", "failover", "credentials", "large row")
    measured(record_property, service.profile, len(log.events), *steps)


def test_how_far_back_binlogs_reach_is_in_the_log(
    database: DatabaseFixture, kafka: KafkaCluster, keyspace: str
) -> None:
    """The time in the oldest file's first event, as the server wrote it, and the retention."""
    settings = settings_of(database, kafka, keyspace)
    with database.connect() as connection:
        oldest = str(rows(connection, "SHOW BINARY LOGS")[0][0])
        [(_, kept)] = rows(connection, "SHOW VARIABLES LIKE 'binlog_expire_logs_seconds'")
    # Magic bytes, then the header of the first event, which begins with its time.
    begun = (database.server.datadir / oldest).read_bytes()[4:8]

    with producing(settings):
        wait_for(
            "it is known", lambda: (p := progress_of(settings)) is not None and bool(p.binlogs)
        )
    last = progress_of(settings)

    assert last is not None
    assert last.binlogs is not None
    assert last.binlogs.since_us == int.from_bytes(begun, "little") * 1_000_000
    assert last.binlogs.since_us <= time.time_ns() // 1_000
    assert last.binlogs.kept_s == (int(kept) or None)


# What a person reads whose server of a service is set as plain servers are by default.
WRONG = {
    "binlog_format": "MIXED",
    "binlog_row_metadata": "MINIMAL",
    "binlog_row_image": "MINIMAL",
    "sync_binlog": "0",
    "log_bin": "0",
}
RDS_WAY = (
    "in the DB parameter group of the instance set {} = {} (static parameters need a reboot of the "
    "instance)"
)
AURORA_WAY = (
    "in the DB cluster parameter group set {} = {} (static parameters need a reboot of the writer)"
)
CLOUD_SQL_WAY = (
    "gcloud sql instances patch INSTANCE --database-flags={}={} (with all flags that the instance "
    "has, for this replaces them)"
)
AZURE_WAY = (
    "az mysql flexible-server parameter set --resource-group GROUP --server-name SERVER --name {} "
    "--value {}"
)
RDS_LOG_BIN = (
    "turn on automated backups, with which RDS writes a binlog: aws rds modify-db-instance "
    "--db-instance-identifier INSTANCE --backup-retention-period 7 --apply-immediately"
)
# By service: how a variable is set, and the ways of those that are set in another way.
READ_BY_PEOPLE: list[tuple[Service, str, dict[str, str]]] = [
    (RDS_MYSQL, RDS_WAY, {"log_bin": RDS_LOG_BIN}),
    (RDS_MARIADB, RDS_WAY, {"log_bin": RDS_LOG_BIN}),
    (
        AURORA_MYSQL,
        AURORA_WAY,
        {
            "log_bin": (
                "in the DB cluster parameter group set binlog_format = ROW, and reboot the writer; "
                "on a reader Aurora writes no binlog: name the cluster endpoint or the writer"
            )
        },
    ),
    (
        CLOUD_SQL,
        CLOUD_SQL_WAY,
        {
            "log_bin": "gcloud sql instances patch INSTANCE --enable-bin-log",
            "binlog_format": "Cloud SQL always logs rows; look who has set it for the whole server",
        },
    ),
    (
        AZURE_MYSQL,
        AZURE_WAY,
        {
            "log_bin": "Azure writes it on each server that is no replica: name that one",
            "binlog_format": "Azure always logs rows: ask its support",
            "binlog_row_metadata": (
                'Azure lets nobody set it: set metadata = "proved" in [producer]; '
                "docs/managed.md#azure says what that means"
            ),
        },
    ),
]


@pytest.mark.usefixtures("real_servers")
@pytest.mark.parametrize(
    ("service", "way", "others"),
    READ_BY_PEOPLE,
    ids=[str(service) for service, *_ in READ_BY_PEOPLE],
)
def test_refusals_are_in_the_words_of_the_service(
    request: pytest.FixtureRequest,
    service: Service,
    way: str,
    others: dict[str, str],
    record_property: RecordProperty,
) -> None:
    """Each wrong setting with the way in which people change it there; no SET of any kind."""
    is_mysql = service.flavor is Flavor.MYSQL
    database: DatabaseFixture = request.getfixturevalue("mysql_a" if is_mysql else "mariadb_a")
    wrong = service.saying(**WRONG)
    fixes = {
        name: others.get(name, way.format(name, value))
        for name, value in (
            ("log_bin", ""),
            ("binlog_format", "ROW"),
            ("binlog_row_metadata", "FULL"),
            ("sync_binlog", "1"),
        )
    }
    metadata = "without it the binlog has no column names, signs, character sets and keys"

    with served(database, wrong) as address:
        server = at(address, database)
        problems, warnings = findings(refusing_risks(database, server))

    wanted = (
        f"log_bin is OFF: there is no binlog to read. Fix: {fixes['log_bin']}",
        (
            "binlog_format is MIXED: statements instead of rows would be logged. Fix: "
            f"{fixes['binlog_format']}"
        ),
        f"binlog_row_metadata is MINIMAL: {metadata}. Fix: {fixes['binlog_row_metadata']}",
        (
            "sync_binlog is 0: a crash of the server's machine can lose committed transactions, "
            "and others then get their GTIDs, which the log would skip. Fix: "
            f"{fixes['sync_binlog']} or set accept_loss_at_server_crash = true"
        ),
    )
    for text in wanted:
        assert f"{server.name}: {text}" in problems
    refused(record_property, service.profile, wanted[2])
    assert (
        f"{server.name}: binlog_row_image is MINIMAL: events lack columns, and copies, key ranges "
        f"and reshards stop at such rows: {way.format('binlog_row_image', 'FULL')}"
    ) in warnings
    assert not any("SET PERSIST" in text or "SET GLOBAL" in text for text in problems + warnings)


def refusing_risks(
    database: DatabaseFixture, *servers: ServerSettings, platform: Platform | None = None
) -> ShardProducerSettings:
    """Settings of a shard with these servers that accept no risk; Kafka is not asked."""
    return settings_alone(
        database, servers=servers, platform=platform, accept_loss_at_server_crash=False
    )


def test_a_platform_that_is_recognised_wrongly_is_named_by_the_settings(
    mysql_a: DatabaseFixture,
) -> None:
    """The settings win: another service's way, and that of a plain server."""
    fixes = {}

    with served(mysql_a, AZURE_MYSQL) as address:
        for platform in (None, Platform.RDS, Platform.PLAIN):
            settings = refusing_risks(mysql_a, at(address, mysql_a), platform=platform)
            problems, _ = findings(settings)
            fixes[platform] = next(p for p in problems if "binlog_row_metadata" in p)

    assert fixes[None].endswith("docs/managed.md#azure says what that means")
    assert RDS_WAY.format("binlog_row_metadata", "FULL") in fixes[Platform.RDS]
    assert fixes[Platform.PLAIN].endswith("SET PERSIST binlog_row_metadata = FULL;")


@pytest.mark.parametrize(
    ("variables", "platform"),
    [
        ({"basedir": "/usr/", "version_comment": "MySQL Community Server - GPL"}, Platform.PLAIN),
        ({"basedir": "/home/rdsdbbin-copy/"}, Platform.PLAIN),
        (RDS_MYSQL.variables, Platform.RDS),
        (AURORA_MYSQL.variables, Platform.AURORA),
        ({"version_comment": "(Google)"}, Platform.CLOUD_SQL),
        ({"cloudsql_iam_authentication": "OFF"}, Platform.CLOUD_SQL),
        (AZURE_MYSQL.variables, Platform.AZURE),
    ],
)
def test_platforms_are_told_by_their_variables(
    variables: dict[str, str], platform: Platform
) -> None:
    """A plain server has none of them."""
    assert platform_of(variables) is platform


@pytest.mark.parametrize("answer", [REFUSAL, NOTHING], ids=["refused", "emptied"])
def test_what_azure_does_not_show_is_said_where_it_matters(
    mysql_a: DatabaseFixture, answer: str
) -> None:
    """Hidden statements are no reason to refuse the server, and nothing keeps its binlogs.

    A plain server is refused: its binlog may have filters.
    """
    service = replace(AZURE_MYSQL.saying(binlog_row_metadata="FULL"), answer=answer)
    with served(mysql_a, service) as address:
        server = at(address, mysql_a)
        settings = settings_alone(mysql_a, servers=(server,))
        problems, warnings = findings(settings)
        [plain], _ = findings(settings_alone(mysql_a, servers=(server,), platform=Platform.PLAIN))

    filters, expiry, oldest = warnings
    assert problems == []
    assert "is refused or shows nothing, so filters of the binlog cannot be seen" in filters
    assert expiry == (
        f"{server.name}: binlogs expire as soon as possible: a producer that is down for longer "
        "cannot continue its log; keep them for longer than the longest outage: "
        f"{AZURE_WAY.format('binlog_expire_logs_seconds', 604800)}"
    )
    assert oldest == (
        f"{server.name}: SHOW BINARY LOGS is refused or shows nothing, so the age of the oldest "
        "binlog cannot be seen: `status` does not say for how long the producer may be off, and a "
        "log cannot start at a time"
    )
    assert "filters of the binlog cannot be seen. Fix: let 'shardstream'@'127.0.0.1'" in plain


@pytest.mark.parametrize("answer", [REFUSAL, NOTHING], ids=["refused", "emptied"])
def test_azure_is_streamed_from_though_it_shows_no_binlogs(
    mysql_a: DatabaseFixture, kafka: KafkaCluster, keyspace: str, answer: str
) -> None:
    """Nothing of the stream needs the list of binlogs; how far back they reach stays unknown."""
    name = mysql_a.new_database()
    service = replace(AZURE_MYSQL.saying(binlog_row_metadata="FULL"), answer=answer)
    with served(mysql_a, service) as address:
        settings = settings_of(mysql_a, kafka, keyspace, servers=(at(address, mysql_a),))
        with producing(settings):
            statements(mysql_a, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
            wait_for("the list is asked for", lambda: "SHOW BINARY LOGS" in address.queries)
            statements(mysql_a, f"INSERT INTO {name}.t VALUES (1)")
            wait_caught_up(settings)
    last = progress_of(settings)

    assert [e.after for e in read_log(settings).events if e.table == "t" and e.after] == [{"id": 1}]
    assert last is not None
    assert last.binlogs is None


@pytest.mark.full
def test_a_replica_of_azure_has_the_metadata_that_azure_lacks(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """A replica logs its own metadata. Azure's server, which is not read, is no problem then."""
    primary, replica = start_pair(start_mysql)
    statements(primary, "SET GLOBAL binlog_row_metadata = MINIMAL")
    name = primary.new_database()
    with served(primary, AZURE_MYSQL) as address:
        servers = (server_of(replica), replace(at(address, primary), read=False))
        settings = settings_of(primary, kafka, keyspace, servers=servers)
        problems, _ = findings(settings)
        with producing(settings):
            statements(primary, f"CREATE TABLE {name}.t (id INT PRIMARY KEY, e ENUM('a', 'b'))")
            statements(primary, f"INSERT INTO {name}.t VALUES (1, 'b')")
            wait_same(replica, primary)
            wait_caught_up(settings)

    [row] = [e.after for e in read_log(settings).events if e.table == "t" and e.after]
    assert problems == []
    assert row == {"id": 1, "e": "b"}


@pytest.mark.full
@pytest.mark.parametrize("service", [RDS_MYSQL, RDS_MARIADB], ids=str)
def test_retention_of_rds_is_that_of_its_procedure(
    request: pytest.FixtureRequest, kafka: KafkaCluster, keyspace: str, service: Service
) -> None:
    """Preflight prints the statement; once it is executed the service's purger keeps binlogs.

    Before, a producer that was off cannot go on, and says so.
    """
    database = request.getfixturevalue(f"start_{service.flavor.value}")()
    make_tables(database, service)
    with served(database, service) as address:
        server = at(address, database)
        settings = settings_of(database, kafka, keyspace, servers=(server,))
        with producing(settings):
            wait_caught_up(settings)
        statements(database, "CREATE DATABASE lost")
        purge_as_rds(database)
        error = RunningProducer(settings).wait_error()
        [warning] = findings(settings)[1]
        later = settings_of(database, kafka, f"{keyspace}b", servers=(server,))
        with producing(later):
            wait_caught_up(later)
        _, _, fix = warning.rpartition(": ")
        statements(database, fix, "CREATE DATABASE kept")
        purge_as_rds(database)
        with producing(later):
            wait_caught_up(later)
        problems, warnings = findings(later)

    assert isinstance(error, BinlogPurged)
    assert f"{server.name} has purged" in str(error)
    assert warning.startswith(f"{server.name}: binlogs expire as soon as possible: ")
    assert fix == "CALL mysql.rds_set_configuration('binlog retention hours', 168);"
    assert (problems, warnings) == ([], [])


def test_retention_of_rds_that_cannot_be_seen_is_said(mysql_a: DatabaseFixture) -> None:
    """The variables of the server say nothing about it, so they are not believed instead."""
    with served(mysql_a, RDS_MYSQL) as address:
        server = at(address, mysql_a)
        _, [warning] = findings(settings_alone(mysql_a, servers=(server,)))

    assert warning == (
        f"{server.name}: for how long binlogs are kept cannot be seen: mysql.rds_configuration may "
        f"not be read. GRANT SELECT ON mysql.rds_configuration TO '{server.user}'@'127.0.0.1'; and "
        "look at CALL mysql.rds_show_configuration;"
    )


def test_a_reader_of_aurora_is_left_out_with_a_sentence(
    mysql_a: DatabaseFixture, start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """It writes no binlog. The writer is followed, wherever both stand in the list."""
    reader = start_mysql(("--skip-log-bin",))
    make_tables(mysql_a, AURORA_MYSQL)
    statements(mysql_a, "CALL mysql.rds_set_configuration('binlog retention hours', 168)")
    with served(mysql_a, AURORA_MYSQL) as writing, served(reader, AURORA_MYSQL) as reading:
        servers = (at(reading, reader), at(writing, mysql_a))
        settings = settings_of(mysql_a, kafka, keyspace, servers=servers)
        problems, warnings = findings(settings)
        alone, _ = findings(settings_alone(reader, servers=servers[:1]))
        with producing(settings) as producer:
            wait_caught_up(settings_of(mysql_a, kafka, keyspace, servers=servers[1:]))
    statements(mysql_a, "DROP TABLE mysql.rds_configuration, mysql.rds_heartbeat2")
    statements(mysql_a, "DROP TABLE mysql.rds_sysinfo")
    statements(mysql_a, "DROP PROCEDURE mysql.rds_set_configuration")
    last = progress_of(settings)

    assert problems == []
    [warning] = warnings
    assert warning == (
        f"{servers[0].name}: a reader of Aurora writes no binlog (log_bin is OFF), so it is left "
        "out; it is followed once it writes one, as after a failover"
    )
    assert any("log_bin is OFF: there is no binlog to read" in problem for problem in alone)
    assert last is not None
    assert last.server == servers[1].name
    assert any("log_bin is OFF" in status.note for status in producer.statuses)


@pytest.mark.full
def test_blue_and_green_continue_one_log(
    start_mysql: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """Green replicates from blue, then has the endpoint; its GTIDs are its own, and all continues.

    A producer that runs and one that is started later go on, each row once.
    """
    blue, green = start_pair(start_mysql)
    take_over(green, blue)
    for each in (blue, green):
        make_tables(each, AURORA_MYSQL)
    name = blue.new_database()
    with served(blue, AURORA_MYSQL) as endpoint:
        settings = settings_of(blue, kafka, keyspace, servers=(at(endpoint, blue),))
        with producing(settings):
            with Workload(blue, name) as load:
                wait_for("rows go through", lambda: load.committed > ROWS_BEFORE_KILL)
            statements(blue, "SET GLOBAL super_read_only = ON")
            wait_same(green, blue)
            promote(green)
            endpoint.move_to(green)
            statements(green, f"INSERT INTO {name}.t VALUES (-1, 1, '')")
            wait_caught_up(settings)
        statements(green, f"INSERT INTO {name}.t VALUES (-2, 1, '')")
        with producing(settings):
            wait_caught_up(settings)

    log = read_log(settings)
    check_copied_log(log)
    check_progress(log)
    assert replay_upserts(log, name, "t") == server_rows(green, name, "t", ["id"])
    changes = [(e.gtid, e.row_index) for e in log.events]
    assert len(set(changes)) == len(changes)
    assert len({gtid.partition(":")[0] for gtid, _ in changes}) == 2
