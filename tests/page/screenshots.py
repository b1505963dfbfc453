"""Makes the pictures of the live page in docs/: `python -m tests.page.screenshots`.

No servers run: the page shows a split that took place a while ago, and a producer that has stopped.
"""

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser

from event_token import KeyRange, ShardPosition, StreamPosition
from tests.page.chromium import headless_chromium
from tests.page.watching import watching
from tests.repository import ROOT
from tests.shardstream.status.serving import serving
from tests.topics.fleet.looks import SECOND_US, shard_look
from topics.fleet.view import KeyspaceView, ShardEnds, keyspace_view
from topics.keyspace.topology import (
    ReshardEntry,
    ReshardState,
    ShardEntry,
    ShardState,
    Topology,
)
from topics.named_readers import NamedReader, ReaderRecord
from topics.progress.record import LastDdl

# A picture is taken after STATES looks, 22 s. The hop is so long before the first of them, and the
# stop so long after it.
HOP_S_BEFORE, STOP_S_AFTER = 25, 8
# Of the upper end of the page; below it is empty.
SIZE = {"x": 0, "y": 0, "width": 1280, "height": 620}
STATES, INTERVAL_S = 75, 0.3
SHARDS = {"-80": "db-a:3306", "80-": "db-b:3306", "80-c0": "db-c:3306", "c0-": "db-d:3306"}
SOURCE, TARGETS = "80-", ("80-c0", "c0-")


class Scene:
    """The keyspace of the pictures."""

    def __init__(self, *, stops: bool) -> None:
        """`stops`: the producer of c0- ends after a while."""
        self._began_us = time.time_ns() // 1_000
        self._stops = stops
        self._chance = random.Random(1)

    def look(self, keyspace: str) -> KeyspaceView:
        """Return how the shards are now."""
        now_us = time.time_ns() // 1_000
        hop_us = self._began_us - HOP_S_BEFORE * SECOND_US
        looks = {shard: self._shard(shard, now_us) for shard in SHARDS}
        split = ReshardEntry("r1", (SOURCE,), TARGETS, ReshardState.COMPLETED.value, hop_us)
        states = {SOURCE: ShardState.RETIRED}
        entries = (ShardEntry(shard, states.get(shard, ShardState.SERVING)) for shard in SHARDS)
        topology = Topology(keyspace, 1, tuple(entries), reshards=(split,))
        seqs = {"-80": 48_112, "80-c0": 6_207, "c0-": 6_391}
        at = {shard: ShardPosition(seq, seq, None) for shard, seq in seqs.items()}
        said_us = now_us - 4 * SECOND_US
        position = StreamPosition(1, said_us, at)
        everything = KeyRange.parse("-")
        billing = ReaderRecord(
            "billing", "a", position, everything, "app-3", "0.1.0", said_us + SECOND_US, 0
        )
        return keyspace_view(topology, looks, now_us, (NamedReader(billing),))

    def _shard(self, shard: str, now_us: int) -> ShardEnds:
        since_s = (now_us - self._began_us) / SECOND_US
        ago_s = 0.2
        if shard == SOURCE:
            ago_s = since_s + HOP_S_BEFORE
        elif shard == "c0-" and self._stops:
            ago_s = max(ago_s, since_s - STOP_S_AFTER)
        seq = {"-80": 48_431, SOURCE: 41_006, "80-c0": 6_514, "c0-": 6_398}[shard]
        found = shard_look(
            now_us, head_s_ago=ago_s, written_s_ago=ago_s, seq=seq, server=SHARDS[shard]
        )
        assert found.progress is not None
        if shard == "-80":
            ddl = LastDdl(self._began_us - 58 * SECOND_US, "ALTER TABLE", "shop.orders")
            found = replace(found, progress=replace(found.progress, ddl=ddl))
        return replace(found, records_per_s=140 + self._chance.uniform(-12, 12) if ago_s < 1 else 0)


def photograph(browser: Browser, scheme: str, *, stops: bool, sentence: str) -> Path:
    """Open the page, wait until it has seen STATES of its scene, and save a picture of it."""
    path = ROOT / "docs" / f"page-{scheme}.png"
    look: Callable[[str], KeyspaceView] = Scene(stops=stops).look
    with (
        serving(look, "commerce", interval_s=INTERVAL_S) as served,
        watching(browser, f"http://127.0.0.1:{served.port}/", color_scheme=scheme) as watched,
    ):
        watched.wait(f"Number(document.body.dataset.number) >= {STATES}")
        watched.wait_for_sentence("commerce", sentence)
        watched.page.screenshot(path=path, clip=SIZE)  # type: ignore[arg-type]
    return path


def main() -> None:
    """Make both pictures."""
    with (
        tempfile.TemporaryDirectory() as folder,
        headless_chromium(Path(folder)) as browser,
    ):
        print(photograph(browser, "light", stops=False, sentence="everything older than"))
        print(photograph(browser, "dark", stops=True, sentence="c0- has written nothing for"))


if __name__ == "__main__":
    main()
