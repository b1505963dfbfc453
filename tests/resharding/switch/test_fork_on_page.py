"""A switch as the live page shows it, in a real browser."""

from pathlib import Path

import pytest

from resharding.switch.decision import Action, SwitchStep
from resharding.switch.executor import run_switch
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.page.chromium import headless_chromium
from tests.page.watching import StatusRelay, watching
from tests.resharding.switchable import SOURCE, TARGETS, Switchable, split
from tests.shardstream.status.serving import serving
from topics.fleet.look import FleetWatch
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_readers
from topics.progress.record import MarkKind
from topics.schemas import open_schema_ids

pytestmark = pytest.mark.full


def switch_seen(world: Switchable, watched: StatusRelay) -> str:
    """Switch; return what the page says of the reshard while writes are stopped."""
    seen = []

    def tell(step: SwitchStep) -> None:
        if step.action is Action.DECIDE:
            watched.wait("document.querySelector('.reshards').textContent.includes('stopped on')")
            seen.append(watched.page.locator(".reshards").text_content() or "")

    run_switch(world.settings, tell)
    return seen[0]


def marks_of(world: Switchable) -> dict[str, tuple[str, int | None]]:
    """The END and the BEGINs in the progress topics: kind and hop time, by shard."""
    found = {}
    for shard in (SOURCE, *TARGETS):
        [mark] = [
            p.mark
            for p in world.progress(shard)
            if p.mark is not None and p.mark.kind in {MarkKind.END, MarkKind.BEGIN}
        ]
        found[shard] = (mark.kind.value, mark.hop_time_us)
    return found


def test_the_timeline_forks_at_the_hop_of_a_switch(
    servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str, tmp_path: Path
) -> None:
    """One page shows how far targets are, then stopped writes, then END and BEGINs of the logs."""
    provision_readers(ClientConfig({"bootstrap.servers": kafka.bootstrap_servers}), keyspace)
    with split(servers, kafka, keyspace) as world, headless_chromium(tmp_path) as browser:
        world.verified(0)
        client = world.settings.kafka
        with (
            FleetWatch(client, open_schema_ids(client, None)) as fleet,
            serving(fleet.look, keyspace) as served,
            watching(browser, f"http://127.0.0.1:{served.port}/") as watched,
        ):
            watched.wait_for_sentence(keyspace, "everything older than")
            watched.wait(
                "document.querySelector('.reshards').textContent.includes('applier reported')"
            )
            before = watched.timeline(keyspace)
            stopped = switch_seen(world, watched)
            after = watched.wait_for_fork(keyspace)
            [fork] = after["forks"]
        written = marks_of(world)

    assert [lane["shard"] for lane in before["lanes"]] == [SOURCE, *TARGETS]
    assert before["forks"] == []
    assert f"writes are stopped on {SOURCE} since" in stopped
    assert [lane["shard"] for lane in after["lanes"]] == [SOURCE, *TARGETS]
    assert [(m["kind"], m["shard"]) for m in fork["marks"]] == [
        ("END", SOURCE),
        *(("BEGIN", target) for target in TARGETS),
    ]
    assert {m["shard"]: m["kind"] for m in fork["marks"]} == {
        shard: kind for shard, (kind, _) in written.items()
    }
    assert {fork["atUs"]} == {at_us for kind, at_us in written.values() if kind == "BEGIN"}
    source, *targets = after["lanes"]
    assert {source["toUs"], *(lane["fromUs"] for lane in targets)} == {fork["atUs"]}
