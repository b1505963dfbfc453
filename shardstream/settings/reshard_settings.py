"""From the settings file to the servers of a reshard."""

from collections.abc import Iterable

from databases.errors import ServerLost
from event_token.errors import UsageError
from resharding.errors import ShardNotListed
from resharding.primaries import find_primary
from resharding.server import ReshardServer
from resharding.switch.settings import SwitchSettings
from shardstream.settings.model import ReshardSection, Settings
from shardstream.settings.producer_settings import tls_settings


def reshard_section(settings: Settings, keyspace: str) -> ReshardSection:
    """What the settings say of resharding a keyspace; UsageError when they say nothing."""
    section = settings.keyspace(keyspace).reshard
    if section is None:
        message = (
            f"the settings have no [keyspaces.{keyspace}.reshard]: name there the account that "
            f"reshards and the accounts of the application"
        )
        raise UsageError(message)
    return section


def reshard_server(settings: Settings, keyspace: str, shard: str) -> ReshardServer:
    """The primary of a shard, as its servers say, with the account that reshards.

    Raises ShardNotListed, and what `find_primary` raises.
    """
    account = reshard_section(settings, keyspace)
    try:
        section = settings.shard(keyspace, shard)
    except UsageError as error:
        raise ShardNotListed(str(error)) from error
    password = account.password(settings.folder).get_secret_value()
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
    """The primaries of some shards. One UsageError lists all that cannot be found."""
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
    settings: Settings, keyspace: str, reshard_id: str, *, force: bool = False
) -> SwitchSettings:
    """What `switch`, `cancel` and `complete` need."""
    return SwitchSettings(
        reshard_id=reshard_id,
        keyspace=keyspace,
        server_of=lambda shard: reshard_server(settings, keyspace, shard),
        accounts=reshard_section(settings, keyspace).application_accounts,
        kafka=settings.kafka_client(),
        registry_url=settings.kafka.schema_registry_url,
        force=force,
    )
