"""MariaDB servers that fail over and may lose transactions, and what each can tell of itself.

The truth is which transactions a server has: a list, in the order of its binlog. What it tells is
less: its last GTID, `gtid_binlog_state` (the last GTID of each server in what it has logged since
it was built) and `gtid_slave_pos` (the last one that it replicated).
"""

from dataclasses import dataclass, field

from event_token import MariadbGtidSet

# One transaction of domain 0: server id and number.
Written = tuple[int, int]


@dataclass
class Server:
    """One server; a lost history stays readable. Without `logs_updates` it logs its own alone."""

    server_id: int
    logs_updates: bool = True
    history: list[Written] = field(default_factory=list)
    logged: dict[int, int] = field(default_factory=dict)
    followed: Written | None = None

    def write(self) -> Written:
        """Commit a transaction of its own."""
        written = (self.server_id, self.history[-1][1] + 1 if self.history else 1)
        self.history.append(written)
        self.logged[self.server_id] = written[1]
        return written

    def follows(self, primary: "Server") -> bool:
        """Tell whether what it has is the beginning of what the primary has."""
        return self.history == primary.history[: len(self.history)]

    def replicate(self, primary: "Server", count: int) -> None:
        """Apply some more of what the primary has."""
        for written in primary.history[len(self.history) :][:count]:
            self.history.append(written)
            self.followed = written
            if self.logs_updates:
                self.logged[written[0]] = written[1]

    def rebuilt(self, primary: "Server", server_id: int) -> "Server":
        """A new server from the primary's backup, which has no binlogs."""
        history = list(primary.history)
        last = history[-1] if history else None
        return Server(server_id, self.logs_updates, history, {}, last)

    def position(self) -> MariadbGtidSet:
        """What a fresh read claims: its last GTID, and the earlier writers that it knows."""
        if not self.history:
            return MariadbGtidSet()
        state = ",".join(f"0-{server}-{number}" for server, number in self.logged.items())
        followed = "" if self.followed is None else _text(self.followed)
        return MariadbGtidSet.of_server(_text(self.history[-1]), state, followed)

    def logged_position(self) -> MariadbGtidSet:
        """The position of a log that has read all of its history."""
        position = MariadbGtidSet()
        for written in self.history:
            position = position.add_gtid(_text(written))
        return position


class Cluster:
    """A primary, its replicas, and demoted servers. `written`: all transactions, also lost ones."""

    def __init__(self, *, logs_updates: bool = True, new_ids: bool = True) -> None:
        """Three servers. `new_ids`: who lost transactions is rebuilt under a new server id."""
        self.servers = [Server(server_id, logs_updates) for server_id in (1, 2, 3)]
        self.primary = self.servers[0]
        self.written: list[Written] = []
        self._new_ids = new_ids
        self._next_id = len(self.servers) + 1

    def write(self, which: int) -> None:
        """Write on the primary, or on a server that was one and has not heard that it is not."""
        server = self.servers[which % len(self.servers)]
        if server.server_id not in server.logged or which % 2:
            server = self.primary
        self.written.append(server.write())

    def failover(self, to: int, *, lossy: bool) -> None:
        """Promote another server of the same history: with all that the primary has, or not."""
        server = self.servers[to % len(self.servers)]
        if server.follows(self.primary):
            if not lossy:
                server.replicate(self.primary, len(self.primary.history))
            self.primary = server

    def replicate(self, which: int, count: int) -> None:
        """Let a server apply some transactions, if its history goes on there."""
        server = self.servers[which % len(self.servers)]
        if server is not self.primary and server.follows(self.primary):
            server.replicate(self.primary, count)

    def rebuild(self, which: int) -> None:
        """Build a server that has diverged from the primary's backup."""
        at = which % len(self.servers)
        if not self.servers[at].follows(self.primary):
            server_id = self.servers[at].server_id
            if self._new_ids:
                server_id, self._next_id = self._next_id, self._next_id + 1
            self.servers[at] = self.servers[at].rebuilt(self.primary, server_id)

    def play(self, choice: tuple[int, int, int], *, lossy: bool = True) -> None:
        """Let one thing happen."""
        what, which, count = choice
        match what % 6:
            case 0 | 1:
                self.write(which if lossy else 1)
            case 2 | 3:
                self.replicate(which, 1 + count)
            case 4:
                self.failover(which, lossy=lossy)
            case _:
                self.rebuild(which)


def _text(written: Written) -> str:
    return f"0-{written[0]}-{written[1]}"
