"""Random histories of the cache model: one step of one process at a time, faults among them."""

from collections.abc import Callable

from caching.protocol import Floor
from event_token import Flavor
from tests.caching.protocol.actors import (
    BUCKETS,
    POSITION,
    ROWS,
    Invalidator,
    OwnWrite,
    Steps,
    World,
    floor_name,
    memcached_client,
    redis_client,
)
from tests.caching.protocol.database import Database, Server, Shard

# Returns a number below its argument: a random generator's, or Hypothesis's.
Choose = Callable[[int], int]

CLIENTS_MAX = 4
INVALIDATORS_MAX = 2
# More rounds than the longest backlog of a history needs.
QUIET_ROUNDS = 400


class History:
    """One world with clients and invalidators, moved on by chosen steps."""

    def __init__(
        self,
        choose: Choose,
        *,
        memcached: bool,
        left_out: frozenset[str] = frozenset(),
        flavor: Flavor = Flavor.MYSQL,
        fails_over: bool = False,
    ) -> None:
        """Start with one invalidator that has made the floors.

        `fails_over`: primaries fail and lose transactions, and clients go on reading them.
        """
        self.choose = choose
        self.memcached = memcached
        self.fails_over = fails_over
        database = Database(gives_times=bool(choose(2)), flavor=flavor)
        self.world = World(database, left_out=left_out)
        self.clients: list[Steps] = []
        self.own: list[OwnWrite] = []
        self.invalidators: list[tuple[Invalidator, Steps]] = []
        self._start_invalidator()
        self._settle_invalidators()

    def run(self, steps: int) -> None:
        """Take the steps, then let everything come to rest and check the end."""
        actions = (
            *[self._step_client] * 10,
            *[self._step_invalidator] * 8,
            *[self._get] * 4,
            *[self._write] * 2,
            *[self._catch_up] * 2,
            *[self._fault] * 2,
            *[self._fail_over] * self.fails_over,
        )
        for _ in range(steps):
            actions[self.choose(len(actions))]()
            if self.world.violations:
                return
        self._finish()

    def _finish(self) -> None:
        """END: with all logs applied, each hit is the latest; then caches fill and hit again."""
        for client in self.clients:
            for _ in client:
                pass
        self.clients.clear()
        database = self.world.database
        database.begin("-40")
        database.begin("40-80")
        for shard in database.shards.values():
            database.catch_up(shard, len(shard.log))
        self._settle_invalidators()
        for key, rows in ROWS.items():
            for row in rows:
                self.world.applied[key][row] = database.latest[row]
        for key in ROWS:
            self._run_client(key)
        self._settle_invalidators()
        for key in ROWS:
            self._run_client(key)
            hits = self.world.hits
            self._run_client(key)
            if self.world.hits == hits and not self.world.violations:
                self.world.violations.append(f"FILL: {key} is never cached again")

    def _run_client(self, key: str) -> None:
        database = self.world.database
        servers = {row: database.serving(row).replica for row in ROWS[key]}
        for _ in self._client_of(key, servers, []):
            pass

    def _settle_invalidators(self) -> None:
        for _ in range(QUIET_ROUNDS):
            for _, steps in self.invalidators:
                next(steps)
            floors = [
                Floor.parse(node.contents.get(floor_name(number)))
                for number, node in enumerate(self.world.nodes)
            ]
            if all(each.is_idle() for each, _ in self.invalidators) and all(floors):
                break

    def _client(self, key: str, *, use_replica: bool) -> Steps:
        servers: dict[str, Server] = {}
        for row in ROWS[key]:
            shard = self._shard_read(row)
            servers[row] = shard.replica if use_replica else shard.primary
            if shard.demoted is not None and self.choose(2):
                servers[row] = shard.demoted
        return self._client_of(key, servers, list(self.own) if self.choose(2) else [])

    def _client_of(self, key: str, servers: dict[str, Server], own: list[OwnWrite]) -> Steps:
        client = memcached_client if self.memcached else redis_client
        return client(self.world, key, servers, own)

    def _get(self) -> None:
        if len(self.clients) < CLIENTS_MAX:
            key = list(ROWS)[self.choose(len(ROWS))]
            self.clients.append(self._client(key, use_replica=bool(self.choose(3))))

    def _shard_read(self, row: str) -> Shard:
        """The shard that a client believes to serve a row: at times still the source."""
        database = self.world.database
        serving = database.serving(row)
        late = not serving.is_source and self.choose(4) == 0
        return database.shards["-80"] if late else serving

    def _step_client(self) -> None:
        if self.clients:
            number = self.choose(len(self.clients))
            if next(self.clients[number], self) is self:
                del self.clients[number]

    def _step_invalidator(self) -> None:
        _, steps = self.invalidators[self.choose(len(self.invalidators))]
        next(steps)

    def _write(self) -> None:
        rows = list(self.world.database.latest)
        row = rows[self.choose(len(rows))]
        token = self.world.database.write(row)
        if token is not None and self.choose(2):
            self.own.append((token, row, self.world.database.latest[row]))

    def _catch_up(self) -> None:
        shards = list(self.world.database.shards.values())
        self.world.database.catch_up(shards[self.choose(len(shards))], 1 + self.choose(3))

    def _fault(self) -> None:
        database, number = self.world.database, self.choose(2)
        faults: tuple[Callable[[], None], ...] = (
            lambda: database.truncate(("r20", "r60", "ra0")[self.choose(3)]),
            database.end_source,
            lambda: database.begin("-40"),
            lambda: database.begin("40-80"),
            self._evict,
            self._lose_positions,
            self.world.nodes[number].flush,
            lambda: self.world.save(number),
            lambda: self.world.restore(number),
            lambda: self._start_invalidator(changes_back=self.choose(6)),
            self._stop_invalidator,
        )
        faults[self.choose(len(faults))]()

    def _fail_over(self) -> None:
        shards = list(self.world.database.shards.values())
        shards[self.choose(len(shards))].lose(1 + self.choose(4))

    def _lose_positions(self) -> None:
        """Evict the positions, and restart every invalidator before it can publish again."""
        for node in self.world.nodes:
            node.contents.pop(POSITION, None)
        for _ in range(len(self.invalidators)):
            self._stop_invalidator()

    def _evict(self) -> None:
        names = [*BUCKETS, *(floor_name(bucket) for bucket in set(BUCKETS.values()))]
        name = names[self.choose(len(names))]
        for node in self.world.nodes:
            node.contents.pop(name, None)

    def _start_invalidator(self, changes_back: int = 0) -> None:
        if len(self.invalidators) < INVALIDATORS_MAX:
            invalidator = Invalidator(
                self.world, in_two_steps=self.memcached, changes_back=changes_back
            )
            self.invalidators.append((invalidator, invalidator.run()))

    def _stop_invalidator(self) -> None:
        """Kill one and start another, which reads its place from the nodes."""
        self.invalidators.pop(0)
        self._start_invalidator()
