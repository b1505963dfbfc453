"""From the settings file to the servers of a reshard."""

from collections.abc import Iterable

from databases.connection import server_errors
from databases.errors import ServerLost
from event_token.errors import UsageError
from resharding.bookkeeping import ReshardPlan, read_plan
from resharding.errors import ShardNotListed
from resharding.servers import ReshardServer, find_primary, open_session
from resharding.switch.decision import entry_of
from resharding.switch.shard_writes import SwitchSettings
from shardstream.settings.model import ReshardSection, Settings
from shardstream.settings.producer_settings import tls_settings
from topics.keyspace.topology import ReshardEntry, read_topology


def reshard_section(settings: Settings, keyspace: str) -> ReshardSection:
    """Return the settings for resharding a keyspace; UsageError if there are none."""
    section = settings.keyspace(keyspace).reshard
    if section is None:
        raise UsageError(
            f"the settings have no [keyspaces.{keyspace}.reshard]: name there the account that "
            f"reshards and the accounts of the application"
        )
    return section


def reshard_server(settings: Settings, keyspace: str, shard: str) -> ReshardServer:
    """Find the primary among the servers of a shard, with the account that reshards.

    Raises ShardNotListed, and what `find_primary` raises.
    """
    account = reshard_section(settings, keyspace)
    try:
        section = settings.shard(keyspace, shard)
    except UsageError as error:
        raise ShardNotListed(str(error)) from error
    password = account.password(settings.folder)
    return find_primary(
        [
            ReshardServer(
                server.host,
                server.port,
                account.user,
                password,
                tls_settings(server.tls, settings.folder),
                shard=shard,
                flavor=section.flavor,
            )
            for server in section.servers
        ]
    )


def reshard_servers(
    settings: Settings, keyspace: str, shards: Iterable[str]
) -> dict[str, ReshardServer]:
    """Find the primaries of some shards. One UsageError lists all that cannot be found."""
    found = {}
    problems = []
    for shard in shards:
        try:
            found[shard] = reshard_server(settings, keyspace, shard)
        except (ServerLost, UsageError) as error:
            problems.append(f"shard {shard}: {error}")
    if problems:
        raise UsageError("\n".join(problems))
    return found


def switch_settings(
    settings: Settings, keyspace: str, reshard_id: str, reason: str = "", *, force: bool = False
) -> SwitchSettings:
    """Return the settings of `switch`, `cancel` and `complete`."""
    return SwitchSettings(
        reshard_id=reshard_id,
        keyspace=keyspace,
        server_of=lambda shard: reshard_server(settings, keyspace, shard),
        accounts=reshard_section(settings, keyspace).application_accounts,
        kafka=settings.kafka_client(),
        registry_url=settings.kafka.schema_registry_url,
        force=force,
        reason=reason,
    )


def reshard_entry(settings: Settings, keyspace: str, reshard_id: str) -> ReshardEntry:
    """Return the entry of a reshard in the topology; UsageError lists the reshards that exist."""
    settings.keyspace(keyspace)
    return entry_of(read_topology(settings.kafka_client(), keyspace), keyspace, reshard_id)


def plan_on(server: ReshardServer, reshard_id: str) -> ReshardPlan:
    """Read the plan of a reshard from a target; UsageError if it has none."""
    connection = open_session(server)
    try:
        with server_errors(server, "reading the reshard's plan on"):
            plan = read_plan(connection, reshard_id, server.name)
    finally:
        connection.close()
    if plan is None:
        raise UsageError(
            f"{server.name} is not a target of reshard {reshard_id}; "
            f"run `shardstream reshard create` first"
        )
    return plan
