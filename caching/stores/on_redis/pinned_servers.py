"""One connection per server, each of which has to be resumed on before it is used (rule 11)."""

from collections.abc import Collection, Sequence
from typing import Any

from caching.errors import Reconnected, StoreUnreachable
from caching.protocol import Layout
from caching.protocol.layout import GROUPS
from caching.stores.on_redis.routes import Address
from caching.stores.on_redis.scripts import Call, Word
from caching.stores.on_redis.servers import Servers
from caching.stores.on_redis.wire import NO_ANSWER, Wire, send


class PinnedServers(Servers):
    """Servers of which each group remembers the connection it was resumed on.

    A group whose slot is on another server now, or whose server has been connected to again, may
    lack what was acknowledged: commands for it raise Reconnected until it is resumed.
    """

    def __init__(self, layout: Layout, url: str, *, timeout_ms: int) -> None:
        """Connect to nothing yet."""
        super().__init__(layout, url, timeout_ms=timeout_ms, open_s=0)
        self._connections: dict[Address, tuple[Wire, int]] = {}
        self._resumed: dict[int, tuple[Address, int]] = {}

    def resume(self, calls: Sequence[Call]) -> dict[int, Any]:
        """Send calls, one per group, for the groups with a new connection; replies by group."""
        self._learn_routes()
        places = {group: self._place(group) for group in range(GROUPS)}
        renewed = [call for call in calls if self._resumed.get(call.group) != places[call.group]]
        before = dict(self._resumed)
        try:
            self._resumed |= {call.group: places[call.group] for call in renewed}
            replies = self.run(renewed)
        except BaseException:
            self._resumed = before
            raise
        return {call.group: reply for call, reply in zip(renewed, replies, strict=True)}

    def close(self) -> None:
        """Close all connections."""
        for connection, _ in self._connections.values():
            connection.disconnect()
        super().close()

    def _check(self, groups: Collection[int]) -> None:
        for group in groups:
            if self._resumed.get(group) != self._place(group):
                raise Reconnected(str(group))

    def _send(self, address: Address, words: Sequence[tuple[Word, ...]]) -> list[Any]:
        try:
            return send(self._connected(address)[0], words)
        except NO_ANSWER as fault:
            raise self._unreachable(address, fault) from fault

    def _place(self, group: int) -> tuple[Address, int]:
        """Return where a group is: its server, and the number of the connection to it."""
        address = self._routes.address[group]
        try:
            return address, self._connected(address)[1]
        except NO_ANSWER as fault:
            raise self._unreachable(address, fault) from fault

    def _connected(self, address: Address) -> tuple[Wire, int]:
        """Return the connection to a server and its number, which counts the times it was made."""
        connection, number = self._connections.get(address, (None, 0))
        if connection is None:
            connection = self._pools.of(address)[0].make()
        if not connection.is_connected:
            connection.connect()
            number += 1
            self._connections[address] = connection, number
        return connection, number

    def _unreachable(self, address: Address, fault: Exception) -> StoreUnreachable:
        self._routes.forget()
        return self._pools.of(address)[1].failed(fault)
