"""The servers that a command has claimed, and those that it could not claim."""

from collections.abc import Iterable

from databases.errors import ServerLost, ServerRefused, ServerSilent
from event_token.errors import UsageError
from resharding.errors import ShardNotListed
from resharding.switch.settings import SwitchSettings
from resharding.switch.shard_writes import ShardWrites


class Claims:
    """Claims of the primaries of some shards; none is claimed later, so what is lost stays lost.

    `missing`: why a shard could not be claimed; `gone`: those of them without a server that
    answers, or that the settings do not have. `writes` has the others.
    """

    def __init__(self, settings: SwitchSettings, shards: Iterable[str]) -> None:
        """Claim what answers."""
        self.writes: dict[str, ShardWrites] = {}
        self.missing: dict[str, str] = {}
        self.gone: set[str] = set()
        try:
            for shard in shards:
                self._claim(settings, shard)
        except BaseException:
            self.close()
            raise

    def _claim(self, settings: SwitchSettings, shard: str) -> None:
        try:
            server = settings.server_of(shard)
            self.writes[shard] = ShardWrites(
                server, settings.keyspace, settings.reshard_id, settings.accounts
            )
        except (ServerLost, ServerRefused, UsageError) as error:
            self.missing[shard] = str(error)
            if isinstance(error, (ServerSilent, ShardNotListed)):
                self.gone.add(shard)

    def of(self, shards: Iterable[str]) -> list[ShardWrites]:
        """The claimed ones of some shards, by name."""
        return [self.writes[shard] for shard in sorted(shards) if shard in self.writes]

    def close(self) -> None:
        """Release the claims."""
        for writes in self.writes.values():
            writes.close()
