"""A commit request that the network delays must not end the transaction that follows."""

from dataclasses import replace

from tests.database_servers import DatabaseFixture
from tests.faults.listeners import ListeningCluster
from tests.faults.proxy import ADD_PARTITIONS, END_TXN, Frame, api_of
from tests.producers.servers.replication import statements
from tests.producers.session.producing import (
    check_log,
    check_progress,
    producing,
    read_log,
    replay,
    settings_of,
    table_rows,
    wait_caught_up,
)
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig
from topics.names import ShardTopics

# After this time the client sends the request again.
REQUEST_MS = 3_000


def test_a_commit_that_arrives_late_ends_no_other_transaction(
    mysql_a: DatabaseFixture, healed: ListeningCluster, keyspace: str
) -> None:
    """F04: EndTxn is held back, sent again, and arrives amid the next one: nothing is torn."""
    name = mysql_a.new_database()
    proxy = healed.proxy
    topics = ShardTopics(keyspace, "-")
    statements(mysql_a, f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    kafka = ClientConfig(
        {"bootstrap.servers": healed.proxied, "socket.timeout.ms": str(REQUEST_MS)}
    )
    direct = settings_of(mysql_a, healed, keyspace)
    with producing(replace(direct, kafka=kafka)) as producer:
        statements(mysql_a, f"INSERT INTO {name}.t VALUES (1)")
        wait_caught_up(direct)
        proxy.hold = lambda frame: api_of(frame) == END_TXN
        wait_for("a commit is held", lambda: bool(proxy.held))
        seen = len(producer.statuses)
        wait_for("it is sent again", lambda: len(producer.statuses) > seen)
        # The rows of the next transaction are stored, but its progress record is not.
        log, progress = topics.log.encode(), topics.progress.encode()
        rows_begun: list[bool] = []

        def progress_after_rows(frame: Frame) -> bool:
            if api_of(frame) != ADD_PARTITIONS:
                return False
            if progress in frame:
                if rows_begun:
                    proxy.freeze()  # else this request is sent again as well, before the look
                return bool(rows_begun)
            rows_begun.append(log in frame)
            return False

        proxy.hold = progress_after_rows
        statements(mysql_a, f"INSERT INTO {name}.t VALUES (2), (3)")
        wait_for("the next transaction is open", lambda: len(proxy.held) == 2)
        late = proxy.held[0][0]
        answered = late.answered
        proxy.release()
        wait_for("the broker has answered", lambda: late.answered > answered)
        visible = read_log(direct)
        proxy.held[0][0].reset()
        proxy.heal()
        wait_caught_up(direct)
    written = read_log(direct)

    assert [event.row_index for event in visible.events] == [0]
    check_log(written)
    check_progress(written)
    assert replay(written, name, "t") == table_rows(mysql_a, name, "t")
