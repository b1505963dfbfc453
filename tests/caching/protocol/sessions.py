"""A model of sessions that write on several shards and read cached values, through reshards."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from caching.protocol import CacheEntry, Fill, Floor, Hit, decide_fill, decide_hit
from caching.protocol.freshness import Tokens, joined, oldest
from caching.reading.own_writes import ReadYourWrites
from event_token import ClockUncertainty, EventToken, Flavor
from event_token.token import GRANULARITY_US
from tests.caching.protocol.database import Server, Shard
from tests.caching.protocol.tokens import TRUSTED

# Returns a number below its argument: a random generator's, or Hypothesis's.
Choose = Callable[[int], int]
# Whether a value that was read at these tokens answers a session with these writes.
Rule = Callable[[Tokens, tuple[EventToken, ...]], bool]

# One row lies between each two bounds.
BOUNDS = ("", "40", "80", "c0", "")
ROWS = 4
START_US = 100_000_000
# Times pass in steps of either length: MariaDB tells only whole seconds apart.
STEPS_US = (1_000, 2_000_000)
# Beyond END, so that nothing in a source is as late as its targets' BEGIN.
HOP_US = 10_000
SKEWS_US = (-3_000_000, 0, 40_000)
SESSIONS = 3
ENTRIES_MAX = 30
GENERATION = bytes(16)


@dataclass
class Part:
    """A shard with the rows `low` up to `high`; its clock is off by `skew_us`."""

    low: int
    high: int
    shard: Shard
    skew_us: int
    is_open: bool
    hop_us: int = 0

    def time_us(self, now_us: int) -> int:
        """The time of the next transaction, which no clock sets back; a target's is from H on."""
        granularity = GRANULARITY_US[self.shard.flavor]
        clock_us = (now_us + self.skew_us) // granularity * granularity
        last_us = self.shard.end().timestamp_us or 0
        return max(clock_us, last_us + (granularity == 1), self.hop_us)


@dataclass
class Session:
    """The session's cookie, and the versions of the rows that it wrote."""

    cookie: str = ""
    written: dict[str, int] = field(default_factory=dict)

    def wrote(self, token: EventToken, row: str, version: int) -> None:
        """Add a write."""
        writes = ReadYourWrites.from_cookie(self.cookie)
        writes.wrote(token)
        self.cookie = writes.to_cookie()
        self.written[row] = version

    @property
    def tokens(self) -> tuple[EventToken, ...]:
        """What its reads have to hold."""
        return ReadYourWrites.from_cookie(self.cookie).tokens


@dataclass(frozen=True)
class Read:
    """The rows of a value, each with its version, and the tokens of their reads."""

    tokens: Tokens
    versions: dict[str, int]


class SessionHistory:
    """Sessions, lagging replicas, splits and merges, moved on by chosen steps.

    All rows share a bucket, whose floor is raised by each change, in any lag.
    """

    def __init__(self, choose: Choose, flavor: Flavor, clock: ClockUncertainty = TRUSTED) -> None:
        """Start with two shards of two rows each."""
        self.choose = choose
        self.flavor = flavor
        self.clock = clock
        self.now_us = START_US
        self.latest = {f"r{number}": 0 for number in range(ROWS)}
        self.names: list[str] = []
        self.serving = [self._part(0, 2, is_source=True), self._part(2, 4, is_source=True)]
        self.sources: list[Part] = []
        self.pending: list[Part] = []
        self.sessions = [Session() for _ in range(SESSIONS)]
        self.values: list[Read] = []
        self.floor = Floor(GENERATION, {})
        self.changes: list[tuple[EventToken, str | None, int]] = []
        self.applied: dict[str, int] = {}
        self.fills = 0
        self.violations: list[str] = []
        for number in range(ROWS):
            self._write(number)
        for part in self.serving:
            self.floor = self.floor.raised(part.shard.end())

    def run(self, steps: int, *rules: Rule) -> list[list[bool]]:
        """Take the steps; of each read what the rules answered, the product, and if it is stale."""
        answers: list[list[bool]] = []
        actions = (
            *[self._write_own] * 3,
            *[self._cache] * 4,
            *[lambda: answers.append(self._get(rules))] * 4,
            *[self._catch_up] * 2,
            self._heartbeat,
            self._apply,
            self._reshard,
            self._begin,
        )
        for _ in range(steps):
            actions[self.choose(len(actions))]()
        return answers

    def _part(self, low: int, high: int, *, is_source: bool) -> Part:
        name = f"{BOUNDS[low]}-{BOUNDS[high]}"
        generation = self.names.count(name) + 1
        self.names.append(name)
        name = name if generation == 1 else f"{name}.{generation}"
        shard = Shard(name, len(self.names), is_source, flavor=self.flavor)
        shard.gives_times = bool(self.choose(4))
        return Part(low, high, shard, SKEWS_US[self.choose(len(SKEWS_US))], is_source)

    def _tick(self) -> int:
        self.now_us += STEPS_US[self.choose(2)]
        return self.now_us

    def _append(self, part: Part, rows: dict[str, int], *, begins: bool = False) -> EventToken:
        part.shard.append(part.time_us(self._tick()), rows, begins=begins)
        return part.shard.end()

    def _write(self, number: int) -> EventToken | None:
        [part] = [each for each in self.serving if each.low <= number < each.high]
        if not part.is_open:
            return None
        row = f"r{number}"
        self.latest[row] += 1
        token = self._append(part, {row: self.latest[row]})
        self.changes.append((token, row, self.latest[row]))
        return token

    def _write_own(self) -> None:
        number = self.choose(ROWS)
        token = self._write(number)
        if token is None:
            return
        if not self.choose(4):  # an account that may not read the shard's times
            token = EventToken(None, token.shard, token.position)
        session = self.sessions[self.choose(SESSIONS)]
        session.wrote(token, f"r{number}", self.latest[f"r{number}"])

    def _cache(self) -> None:
        """Read one row or several, each from any server of a shard that has or had it."""
        numbers = sorted({self.choose(ROWS) for _ in range(1 + self.choose(2))})
        tokens, versions = [], {}
        for number in numbers:
            server, row = self._server(number), f"r{number}"
            tokens.append(server.token())
            versions[row] = server.version(row)
        value = Read(oldest(tokens), versions)
        self.values = [*self.values[-ENTRIES_MAX:], value]
        if isinstance(decide_fill(self.floor.to_bytes(), None, value.tokens, self.clock), Fill):
            self.fills += 1
            for row, version in versions.items():
                if version < self.applied.get(row, 0):
                    self.violations.append(f"FILL: {row}@{version} under @{self.applied[row]}")

    def _server(self, number: int) -> Server:
        parts = [each for each in self.sources if each.low <= number < each.high]
        now = [each for each in self.serving if each.low <= number < each.high]
        shard = (now * 3 + parts)[self.choose(3 + len(parts))].shard
        return shard.replica if self.choose(3) else shard.primary

    def _get(self, rules: Iterable[Rule]) -> list[bool]:
        """Let a session get a value, by each rule; note where the product returns a stale one."""
        if not self.values:
            return []
        value = self.values[self.choose(len(self.values))]
        session = self.sessions[self.choose(SESSIONS)]
        entry = CacheEntry(GENERATION, bytes(8), value.tokens, 0, b"v").to_bytes()
        found = decide_hit(self.floor.to_bytes(), entry, self.clock, session.tokens)
        is_stale = any(
            version < session.written.get(row, 0) for row, version in value.versions.items()
        )
        if isinstance(found, Hit) and is_stale:
            self.violations.append(f"OWN: {value} for {session}")
        answers = [rule(value.tokens, session.tokens) for rule in rules]
        return [*answers, isinstance(found, Hit), is_stale]

    def _catch_up(self) -> None:
        parts = [*self.serving, *self.sources]
        shard = parts[self.choose(len(parts))].shard
        shard.replica.applied = min(len(shard.log), shard.replica.applied + 1 + self.choose(4))

    def _heartbeat(self) -> None:
        part = self.serving[self.choose(len(self.serving))]
        if part.is_open:
            self._append(part, {})

    def _apply(self) -> None:
        """Let the invalidator apply some changes."""
        for _ in range(1 + self.choose(6)):
            if self.changes:
                token, row, version = self.changes.pop(0)
                self.floor = Floor(GENERATION, joined(self.floor.tokens, token))
                if row is not None:
                    self.applied[row] = version

    def _reshard(self) -> None:
        """End one shard or two neighbours; their targets have the rows and wait for BEGIN."""
        if self.pending:
            return
        number = self.choose(len(self.serving))
        first, after = self.serving[number], self.serving[number + 1 : number + 2]
        if self.choose(2) and first.high - first.low > 1:
            bounds = [(first.low, first.low + 1), (first.low + 1, first.high)]
            sources = [first]
        elif after:
            sources = [first, *after]
            bounds = [(first.low, after[0].high)]
        else:
            return
        hop_us = HOP_US + max(self._append(part, {}).timestamp_us or 0 for part in sources)
        for part in sources:
            part.is_open = False
        targets = [self._part(low, high, is_source=False) for low, high in bounds]
        for target in targets:
            for each in range(target.low, target.high):
                self._append(target, {f"r{each}": self.latest[f"r{each}"]})
            target.hop_us = hop_us
        self.serving[number : number + len(sources)] = targets
        self.sources += sources
        self.pending = targets[:]

    def _begin(self) -> None:
        if self.pending:
            target = self.pending.pop(0)
            token = self._append(target, {}, begins=True)
            target.is_open = True
            self.changes.append((token, None, 0))
