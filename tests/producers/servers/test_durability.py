"""What servers may lose in a crash: refused of primaries, a warning on replicas."""

from dataclasses import replace

import pytest

from databases.errors import ServerRefused
from event_token import Flavor
from producers.servers.server_list import open_server
from producers.settings import ServerSettings
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import StartServer
from tests.producers.servers.replication import promote, start_pair, statements, wait_same
from tests.producers.session.producing import (
    RunningProducer,
    problems_of,
    server_of,
    settings_of,
    warnings_of,
)

pytestmark = pytest.mark.full


def lossy(server: ServerSettings, flavor: Flavor) -> dict[str, str]:
    """What preflight says of durability: the fix by variable."""
    found = problems_of(server, flavor, accept_unlogged_cascades=True)
    return {p.what.partition(" is ")[0]: p.fix for p in found if "a crash of" in p.what}


def test_primaries_must_not_lose_commits_in_a_crash(
    start_server: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """A1: refused of primaries with the fix, warned of on replicas, checked at a promotion."""
    primary, replica = start_pair(start_server)
    wait_same(replica, primary)
    flavor = Flavor(primary.flavor)
    first, second = server_of(primary), server_of(replica)
    accepting = settings_of(primary, kafka, keyspace, servers=(second,))
    settings = replace(accepting, accept_loss_at_server_crash=False)

    of_primary = lossy(first, flavor)
    with pytest.raises(ServerRefused, match="sync_binlog is 0: a crash"):
        open_server(first, settings)
    open_server(first, accepting).close()
    of_unread = lossy(replace(first, read=False), flavor)
    statements(primary, *(fix.partition(";")[0] for fix in of_primary.values()))
    open_server(first, settings).close()

    assert set(of_primary) == {"sync_binlog", "innodb_flush_log_at_trx_commit"}
    assert of_unread == of_primary
    assert lossy(first, flavor) == {}
    assert lossy(second, flavor) == {}
    [of_role] = warnings_of(accepting)
    assert "a replica is read, but no primary is named" in of_role
    [of_flush, of_binlog] = sorted(set(warnings_of(settings)) - {of_role})
    assert f"{second.name}: innodb_flush_log_at_trx_commit is 2 on this replica" in of_flush
    assert f"{second.name}: sync_binlog is 0 on this replica" in of_binlog

    producer = RunningProducer(settings)
    producer.wait_streaming()
    promote(replica)
    error = producer.wait_error()
    assert isinstance(error, ServerRefused)
    assert "sync_binlog is 0: a crash" in str(error)
