"""A model of sharded servers: logs of row versions, lagging replicas, failovers, one live split."""

from dataclasses import dataclass, field
from uuid import UUID

from event_token import EventToken, Flavor, GtidSet, empty_gtid_set
from event_token.token import GRANULARITY_US

TICK_US = 1_000


@dataclass(frozen=True)
class Change:
    """One transaction of a shard's log: new versions of rows, or a mark or statement without any.

    `rows` maps each row to its new version. A statement (`is_ddl`) changes rows that it does not
    name in the log; `begins` marks the BEGIN of a target.
    """

    token: EventToken
    rows: dict[str, int]
    is_ddl: bool = False
    begins: bool = False


@dataclass
class Server:
    """One server of a shard: how much of the log it has applied, and what it alone committed."""

    shard: "Shard"
    applied: int = 0
    lost: str = ""

    def token(self) -> EventToken:
        """The token of a read that begins now: executed set, and the time of the last change."""
        log = self.shard.log[: self.applied]
        is_serving = self.shard.is_source or any(change.begins for change in log)
        is_serving = is_serving and self.shard.gives_times
        time_us = log[-1].token.timestamp_us if log and is_serving else None
        position = self.shard.positions[self.applied]
        if self.lost:
            position = position.add_gtid(self.lost)
        return EventToken(time_us, self.shard.name, position)

    def version(self, row: str) -> int:
        """The version of a row as this server shows it now."""
        for change in reversed(self.shard.log[: self.applied]):
            if row in change.rows:
                return change.rows[row]
        return 0


@dataclass
class Shard:
    """One shard: its log, its primary (always at the end of the log) and a replica.

    `positions`: after each transaction of the log, beginning with none. `demoted`: the primary
    before the last failover, which committed something that no other server has.
    """

    name: str
    number: int
    is_source: bool = True
    is_ended: bool = False
    gives_times: bool = True
    flavor: Flavor = Flavor.MYSQL
    failovers: int = 0
    demoted: Server | None = None
    log: list[Change] = field(default_factory=list)
    primary: Server = field(init=False)
    replica: Server = field(init=False)

    def __post_init__(self) -> None:
        """Create the servers."""
        self.primary, self.replica = Server(self), Server(self)
        self.positions: list[GtidSet] = [empty_gtid_set(self.flavor)]

    def gtid(self, count: int) -> str:
        """The GTID that the primary gives to a transaction behind `count` others."""
        if self.flavor is Flavor.MARIADB:
            return f"{self.number}-{self.failovers + 1}-{count + 1}"
        return f"{UUID(int=self.number + 16 * self.failovers + 1)}:{count + 1}"

    def lose(self, count: int) -> None:
        """Fail over to a server without the primary's last transactions, which changed no row."""
        end = len(self.log)
        self.demoted = Server(self, end, self.gtid(end + count))
        self.failovers += 1
        self.primary = Server(self, end)

    def end(self) -> EventToken:
        """The token of the end of the log."""
        if self.log:
            return self.log[-1].token
        return EventToken(0, self.name, self.positions[0])

    def append(
        self, time_us: int, rows: dict[str, int], *, is_ddl: bool = False, begins: bool = False
    ) -> None:
        """Commit one transaction on the primary."""
        self.positions.append(self.positions[-1].add_gtid(self.gtid(len(self.log))))
        token = EventToken(time_us, self.name, self.positions[-1])
        self.log.append(Change(token, rows, is_ddl=is_ddl, begins=begins))
        self.primary.applied = len(self.log)


class Database:
    """Two shards; `-80` can be split while everything runs. Rows are placed by their names."""

    def __init__(self, *, gives_times: bool = True, flavor: Flavor = Flavor.MYSQL) -> None:
        """Start with one version of each row.

        Without `gives_times`, reads have no time: replicas that do not keep the commit order.
        """
        self.now_us = TICK_US
        self._flavor = flavor
        self.shards = {
            "-80": Shard("-80", 0, flavor=flavor),
            "80-": Shard("80-", 1, flavor=flavor),
        }
        self.targets = {
            "-40": Shard("-40", 2, is_source=False, flavor=flavor),
            "40-80": Shard("40-80", 3, is_source=False, flavor=flavor),
        }
        for shard in (*self.shards.values(), *self.targets.values()):
            shard.gives_times = gives_times
        self.latest = dict.fromkeys(("r20", "r60", "ra0"), 0)
        self.is_splitting = False
        for row in self.latest:
            self.write(row)

    def serving(self, row: str) -> Shard:
        """The shard that takes writes of a row now."""
        for name, low, high in (("-40", 0x00, 0x40), ("40-80", 0x40, 0x80)):
            if name in self.shards and low <= int(row[1:], 16) < high:
                return self.shards[name]
        return self.shards["-80" if int(row[1:], 16) < 0x80 else "80-"]

    def rows_of(self, shard: Shard) -> list[str]:
        """The rows that a shard serves."""
        return [row for row in self.latest if self.serving(row) is shard]

    def tick(self) -> int:
        """Let time pass, as much as a server of the family tells apart."""
        self.now_us += max(TICK_US, GRANULARITY_US[self._flavor])
        return self.now_us

    def write(self, row: str) -> EventToken | None:
        """Change a row; None while its shard takes no writes."""
        shard = self.serving(row)
        if shard.is_ended:
            return None
        self.latest[row] += 1
        shard.append(self.tick(), {row: self.latest[row]})
        return shard.end()

    def truncate(self, row: str) -> None:
        """A statement that changes all rows of a shard without a row change in its log."""
        shard = self.serving(row)
        if shard.is_ended:
            return
        changed = self.rows_of(shard)
        for each in changed:
            self.latest[each] += 1
        shard.append(self.tick(), {each: self.latest[each] for each in changed}, is_ddl=True)

    def end_source(self) -> None:
        """Write END into the source; its rows are on both targets, which have no BEGIN yet."""
        source = self.shards["-80"]
        if not source.is_ended:
            source.append(self.tick(), {})
            source.is_ended = True
            for name, row in (("-40", "r20"), ("40-80", "r60")):
                self.targets[name].append(self.tick(), {row: self.latest[row]})

    def begin(self, name: str) -> None:
        """Write BEGIN into a target; it serves from then on."""
        if self.shards["-80"].is_ended and name not in self.shards:
            target = self.targets[name]
            target.append(self.tick(), {}, begins=True)
            self.shards[name] = target

    def catch_up(self, shard: Shard, count: int) -> None:
        """Let a replica apply some transactions."""
        shard.replica.applied = min(len(shard.log), shard.replica.applied + count)
