"""Histories of sharded databases, played from small numbers, with the tokens they log.

A history knows what tokens may only guess: in which order the transactions really committed.
It follows design §7 and §10: shards commit on clocks that are off by up to the uncertainty,
targets replicate their sources interleaved as they like and may commit by themselves, a switch
drains the sources, lets time pass the hop, and only then opens the targets.
"""

from dataclasses import dataclass, field

from event_token import (
    ClockUncertainty,
    EventToken,
    Flavor,
    GtidSet,
    empty_gtid_set,
)

GRID_US = 10_000  # the grid of design §4, on which the hop time lies

# How far a step moves true time: within a grid cell, over one, and about MariaDB's second.
STEPS_US = (1, 3, 12_000, 400_000, 1_000_000)

# One decision: what happens, to which shard, and two more choices.
Choice = tuple[int, int, int, int]


@dataclass(frozen=True)
class Logged:
    """A token, with the true number of the transaction that it stands for."""

    token: EventToken
    truth: int


@dataclass
class Shard:
    """A shard's server and its log."""

    name: str
    flavor: Flavor
    skew_us: int
    position: GtidSet
    serving: bool
    last_us: int = 0
    gnos: dict[int, int] = field(default_factory=dict)
    log: list[Logged] = field(default_factory=list)
    cursors: dict[str, int] = field(default_factory=dict)  # of a target, into its sources' logs

    def next_gtid(self, server: int) -> str:
        """Return the next GTID that one of the shard's two servers assigns."""
        if self.flavor is Flavor.MARIADB:
            self.gnos[0] = self.gnos.get(0, 0) + 1
            return f"0-{server + 1}-{self.gnos[0]}"
        self.gnos[server] = self.gnos.get(server, 0) + 1
        return f"00000000-0000-0000-0000-{server:012d}:{self.gnos[server]}"


class History:
    """A keyspace that commits, splits and merges; `logged` holds all tokens so far."""

    def __init__(self, flavors: tuple[Flavor, ...], clock: ClockUncertainty) -> None:
        """Begin with two serving shards; new shards take the flavors in turn."""
        self._flavors = flavors
        self._clock = clock
        self._now_us = 1_000_000_000
        self._truth = 0
        self._shards: dict[str, Shard] = {}
        self._sources: list[Shard] = []
        self._targets: list[Shard] = []
        self.logged: list[Logged] = []
        for _ in range(2):
            self._new_shard(serving=True)

    def play(self, choice: Choice) -> None:
        """Let one thing happen."""
        what, which, more, step = choice
        self._now_us += STEPS_US[step % len(STEPS_US)]
        match what % 8:
            case 0 | 1 | 2:
                self._commit(self._pick([*self._serving(), *self._targets], which), more)
            case 3 | 4 | 5:
                self._replicate(which, more)
            case 6:
                self._start_reshard(which, more)
            case _:
                self._switch(which)

    def _pick(self, shards: list[Shard], which: int) -> Shard:
        return shards[which % len(shards)]

    def _serving(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.serving]

    def _new_shard(self, *, serving: bool) -> Shard:
        number = len(self._shards)
        flavor = self._flavors[number % len(self._flavors)]
        skew_us = self._clock.uncertainty_us * (1, -1, 0)[number % 3]
        shard = Shard(f"s{number}", flavor, skew_us, empty_gtid_set(flavor), serving)
        self._shards[shard.name] = shard
        return shard

    def _commit(self, shard: Shard, more: int) -> None:
        """Commit one native transaction; a target that does not serve gives it no time."""
        self._truth += 1
        self._append(shard, more, None, self._truth)

    def _append(self, shard: Shard, more: int, origin: EventToken | None, truth: int) -> None:
        shard.position = shard.position.add_gtid(shard.next_gtid(more % 2))
        seen_us = self._now_us + shard.skew_us
        if shard.flavor is Flavor.MARIADB:
            # The statement began earlier, and only the second of that is known.
            began_us = seen_us - self._clock.mariadb_longest_statement_us * (more % 3) // 2
            seen_us = began_us // 1_000_000 * 1_000_000
        shard.last_us = max(shard.last_us, seen_us)
        has_time = shard.serving or origin is not None
        token = EventToken(shard.last_us if has_time else None, shard.name, shard.position, origin)
        logged = Logged(token, truth)
        shard.log.append(logged)
        self.logged.append(logged)

    def _start_reshard(self, which: int, more: int) -> None:
        if self._targets:
            return
        serving = self._serving()
        first = which % len(serving)
        self._sources = (serving[first:] + serving[:first])[: 1 + more % 2]
        for _ in range(1 + which % 2):
            target = self._new_shard(serving=False)
            # What the sources logged so far arrives by the copy, not by replication.
            target.cursors = {source.name: len(source.log) for source in self._sources}
            self._targets.append(target)

    def _replicate(self, which: int, more: int) -> None:
        if self._targets:
            source = self._pick(self._sources, more)
            self._replicate_from(self._pick(self._targets, which), source, more)

    def _replicate_from(self, target: Shard, source: Shard, more: int) -> bool:
        """Apply the source's next transaction; those without a row for the target leave none."""
        at = target.cursors[source.name]
        if at == len(source.log):
            return False
        target.cursors[source.name] = at + 1
        if (at + more) % 4:
            self._append(target, more, source.log[at].token, source.log[at].truth)
        return True

    def _switch(self, which: int) -> None:
        """Stop the sources, drain them, let time pass the hop, open the targets."""
        if not self._targets:
            return
        for target in self._targets:
            for source in self._sources:
                while self._replicate_from(target, source, which):
                    pass
        ends_us = max(source.last_us for source in self._sources)
        hop_us = (ends_us // GRID_US + 1) * GRID_US
        self._now_us = max(self._now_us, hop_us + self._clock.uncertainty_us)
        for source in self._sources:
            source.serving = False
        for target in self._targets:
            target.serving = True
            target.last_us = max(target.last_us, hop_us)
        self._sources, self._targets = [], []
