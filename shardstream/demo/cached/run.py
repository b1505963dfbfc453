"""`shardstream demo --cache` from beginning to end."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live

from event_token import Flavor
from event_token.errors import Halt
from shardstream.commands.declared_topology import ensure_topology
from shardstream.demo.cached import story
from shardstream.demo.cached.deleter import CdcDeleter
from shardstream.demo.cached.fresh import FreshCache
from shardstream.demo.cached.invalidation import Invalidation, Invalidator, Together
from shardstream.demo.cached.load import Load
from shardstream.demo.cached.plain import ON_CDC, ReplicaReads, plain_caches
from shardstream.demo.cached.proof import Verdict, examples, outcome, settle
from shardstream.demo.cached.screen import Sampler, render
from shardstream.demo.cached.servers import Servers
from shardstream.demo.cached.shop_cache import ShopCache
from shardstream.demo.cached.truth import Comparison, Truth
from shardstream.demo.folder import fresh_folder
from shardstream.demo.sharded_writes import ShardDirectory
from shardstream.demo.split import SOURCE, TARGETS, Split
from shardstream.demo.watch import ProgressWatch
from shardstream.demo.workers import Workers
from shardstream.local.stack import flavor_at_hand
from shardstream.settings.model import load_settings
from shardstream.settings.producer_settings import topic_settings
from topics.kafka.provisioning import provision_shard
from topics.names import ShardTopics
from topics.progress.copy_topic import CopyFeed
from topics.schemas.registry import open_schema_ids

# The load before the steps begin, and after the split, of the whole.
FIRST_PART = 1 / 3
LOOK_S = 0.25
LOOK_AGAIN_S = 1.0
# Producers and the invalidator stream within seconds; this is for a busy machine.
STREAMING_S_MAX = 120.0


def run_cached_demo(
    seconds: int, folder: Path, flavor: Flavor | None = None, *, plain: bool, split: bool = True
) -> bool:
    """Run the shop with `seconds` of load around the steps; True if no entry is wrong at the end.

    `plain`: with ordinary caches beside shardstream's, under the same load. `flavor`: the database
    family; None takes MySQL where it is available. `split`: whether a shard is split, too.
    """
    console = Console(highlight=False)
    folder = fresh_folder(folder)
    began_s = time.monotonic()

    def report(message: str) -> None:
        at = f"{time.monotonic() - began_s:5.1f} s"
        console.print(f"[dim]{at}[/]  {message}", soft_wrap=True)

    with ExitStack() as cleanup:
        flavor = flavor or flavor_at_hand(report)
        report(f"database: {'MySQL' if flavor == 'mysql' else 'MariaDB'}")
        servers = Servers(folder, flavor, report, cleanup, targets=TARGETS if split else ())
        demo = _Demo(folder, servers, cleanup, report, plain=plain)
        demo.begin()
        with Live(console=console, get_renderable=demo.render, transient=True):
            demo.play(seconds)
        return demo.prove(console)


def compare_caches(
    seconds: int, folder: Path, report: Callable[[str], None], *, split: bool = True
) -> Mapping[str, Comparison]:
    """Run the shop with ordinary caches beside shardstream's; return what each holds at the end.

    By the caches' names; for the other arguments see `run_cached_demo`. Halt if a step of the
    story did not go as it should.
    """
    with ExitStack() as cleanup:
        flavor = flavor_at_hand(report)
        servers = Servers(folder, flavor, report, cleanup, targets=TARGETS if split else ())
        demo = _Demo(folder, servers, cleanup, report, plain=True)
        demo.begin()
        demo.play(seconds)
        verdict = demo.verdict()
    if verdict.problems:
        raise Halt("; ".join(verdict.problems))
    return verdict.found


class _Demo:
    """The parts of a running demo."""

    def __init__(
        self,
        folder: Path,
        servers: Servers,
        cleanup: ExitStack,
        report: Callable[[str], None],
        *,
        plain: bool,
    ) -> None:
        """Connect the parts."""
        self._servers = servers
        self._cleanup = cleanup
        self._report = report
        self._is_plain = plain
        self._workers = Workers(folder, servers.settings_path)
        cleanup.callback(self._workers.kill)
        self._phase = "starting"
        self._split_doing = ""
        servers.add_cache_settings()
        settings = load_settings(servers.settings_path)
        self._settings = settings
        self._client = settings.kafka_client()
        ensure_topology(settings, servers.keyspace)
        self._directory = ShardDirectory(servers.keyspace, self._client)
        self._caches, followers, self._invalidation = self._make_caches()
        self._load = Load(self._directory, servers.applications, self._caches)
        cleanup.callback(self._load.ask_to_stop)
        self._truth = Truth(self._directory, servers.roots)
        self._sampler = Sampler(self._truth, self._caches)
        cleanup.callback(self._sampler.stop)
        self._world = story.World(
            directory=self._directory,
            load=self._load,
            caches=self._caches,
            followers=followers,
            invalidation=self._invalidation,
            primaries=servers.applications,
            redis=servers.redis,
            report=report,
            check=self._check,
        )

    def _make_caches(self) -> tuple[Sequence[ShopCache], Sequence[ShopCache], Invalidation]:
        """Return all caches, those that the change stream invalidates, and what does that."""
        servers = self._servers
        fresh = FreshCache(
            servers.settings_path,
            servers.keyspace,
            servers.flavor,
            servers.readers,
            serving=self._directory.serving,
            primaries=servers.primary_ports,
        )
        self._cleanup.callback(fresh.close)
        invalidator = Invalidator(self._workers, servers.keyspace)
        if not self._is_plain:
            return [fresh], [fresh], invalidator
        first = {shard: connects[0] for shard, connects in servers.readers.items()}
        read = ReplicaReads(self._directory, first)
        ordinary = plain_caches(servers.redis_server.port, read)
        for cache in ordinary:
            self._cleanup.callback(cache.close)
        [on_cdc] = [cache for cache in ordinary if cache.kind is ON_CDC]
        deleter = CdcDeleter(servers.settings_path, servers.keyspace, on_cdc.delete)
        self._cleanup.callback(deleter.kill)
        return [fresh, *ordinary], [fresh, on_cdc], Together(invalidator, deleter)

    def begin(self) -> None:
        """Fill the tables, start the producers and what invalidates, and cache the first pages."""
        servers = self._servers
        self._load.fill()
        for shard in servers.sources:
            topics = ShardTopics(servers.keyspace, shard)
            provision_shard(self._client, topics, topic_settings(self._settings))
            self._workers.start(f"producer_{shard}", "produce", servers.keyspace, shard)
        schema_ids = open_schema_ids(self._client, self._settings.kafka.schema_registry_url)
        self._watch = ProgressWatch(self._client, servers.keyspace, servers.sources, schema_ids)
        self._cleanup.callback(self._watch.close)
        self._look_until(lambda: self._watch.frontier_us is not None, "the producers do not stream")
        self._invalidation.start()
        servers.replicas.wait_caught_up()
        self._world.cache_all(self._world.quiet_keys, "at the beginning")
        names = ", ".join(cache.name for cache in self._caches)
        self._report(f"the shop is open, its pages are cached by: {names}; the load begins")

    def play(self, seconds: int) -> None:
        """Let the load run, and do the steps meanwhile."""
        self._load.start()
        self._sampler.start()
        self._let_run(seconds * FIRST_PART, "buyers buy, visitors look at pages")
        for phase, step in (
            ("a price changes", story.price_changes),
            ("the buyer returns", story.buyer_returns),
            ("the invalidator is killed", story.invalidator_is_killed),
            ("Redis is flushed", story.everything_is_flushed),
        ):
            self._phase = phase
            step(self._world)
        if self._servers.targets:
            self._split()
        self._let_run(seconds * (1 - FIRST_PART), "buyers buy, visitors look at pages")
        self._phase = "the load has ended; the last changes arrive"
        self._load.stop()
        settle(self._world, self._servers.replicas)
        self._sampler.stop()

    def _split(self) -> None:
        """Split a shard with the commands that an operator would run."""
        servers = self._servers
        self._phase = f"shard {SOURCE} is split"
        copies = CopyFeed(self._client, ShardTopics(servers.keyspace, SOURCE))
        self._cleanup.callback(copies.close)
        copies.read_to_end()
        split = Split(
            servers.keyspace,
            self._workers,
            self._watch,
            copies=copies,
            server=servers.stack.databases[SOURCE],
            report=lambda said: self._report(f"(f) {said}"),
        )
        while not split.go_on():
            self._split_doing = split.doing
            self._look()
        self._split_doing = ""
        self._follow_topology()

    def _let_run(self, seconds: float, phase: str) -> None:
        self._phase = phase
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            self._look()

    def _look_until(self, done: Callable[[], bool], problem: str) -> None:
        ends_s = time.monotonic() + STREAMING_S_MAX
        while not done():
            if time.monotonic() > ends_s:
                raise Halt(f"{problem}, after {STREAMING_S_MAX:.0f} s")
            self._look()

    def _look(self) -> None:
        self._check()
        self._watch.look(LOOK_S)
        self._follow_topology()

    def _follow_topology(self) -> None:
        """Let the caches read from the shards that serve now."""
        self._directory.look_again()
        for cache in self._caches:
            cache.serve(self._directory.serving)

    def _check(self) -> None:
        self._workers.check_alive()
        self._invalidation.check()
        self._load.check()

    def render(self) -> RenderableType:
        """Return what the screen shows now."""
        return render(self._phase, self._load, self._caches, self._sampler, self._split_doing)

    def verdict(self) -> Verdict:
        """Compare the caches with the primaries."""
        found = {cache.name: self._truth.compare(cache) for cache in self._caches}
        return Verdict(found, self._world.problems)

    def prove(self, console: Console) -> bool:
        """Compare the caches with the primaries, and say what was found."""
        verdict = self.verdict()
        shards = ", ".join(self._directory.serving)
        console.print(
            f"\n{self._load.sales:,} sales, {self._load.views:,} page views; all entries in Redis, "
            f"compared with the rows of the primaries of {shards}:\n",
            soft_wrap=True,
        )
        console.print(outcome(verdict, self._caches))
        for line in examples(verdict):
            console.print(line, markup=False, soft_wrap=True)
        for problem in verdict.problems:
            console.print(f"[bold red]wrong:[/] {problem}", soft_wrap=True)
        console.print(verdict.last_line(), soft_wrap=True)
        return verdict.holds
