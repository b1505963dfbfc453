"""The stack keeps what the shop writes, whatever is killed, and while a shard is split."""

import pytest

from tests.ecosystem.proof import assert_rows_out_are_rows_in
from tests.ecosystem.stack import PROMETHEUS, ComposeStack, wait_for


def test_the_page_shows_moving_rows(stack: ComposeStack) -> None:
    """The published port answers from outside of the containers, and its numbers move."""
    before = {shard["shard"]: shard["records"] for shard in stack.status()["shards"]}

    wait_for(
        "records of all shards move",
        lambda: all(s["records"] > before[s["shard"]] for s in stack.status()["shards"]),
    )

    assert before.keys() >= {"-80"}
    assert stack.fetch("/livez") == "ok\n"


@pytest.mark.parametrize("killed", ["produce-a", "db-a", "kafka"])
def test_killed_container_loses_nothing(stack: ComposeStack, killed: str) -> None:
    """The page names what is missing until the container is started again; no row is lost."""
    stack.container(killed).kill()
    wait_for(f"the page misses {killed}", lambda: stack.status()["is_held_back"])
    said = stack.status()["headline"]

    stack.container(killed).start()

    wait_for("readers keep up again", lambda: not stack.status()["is_held_back"])
    wait_for("all services are healthy", stack.is_healthy)
    assert "-80" in said or killed == "kafka", said
    assert_rows_out_are_rows_in(stack)


def test_a_shard_is_split_while_orders_come_in(stack: ComposeStack) -> None:
    """The command that the documentation names splits 80-; readers follow to its targets.

    Prometheus scrapes what serves then, and no applier any more.
    """
    said = stack.execute("shop", "shardstream-shop", "split")

    assert "80- is split" in said
    states = {shard["shard"]: shard["state"] for shard in stack.status()["shards"]}
    assert states == {"-80": "serving", "80-": "ended", "80-c0": "serving", "c0-": "serving"}
    assert_rows_out_are_rows_in(stack)
    wait_for("Prometheus scrapes the producers of the targets", _targets_are_scraped)


def _targets_are_scraped() -> bool:
    found = PROMETHEUS.query('up{job="shardstream", instance=~"target-.*"} == 1')
    return {each["metric"]["instance"] for each in found} == {"target-c:9644", "target-d:9644"}
