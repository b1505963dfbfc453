"""The profile `observability`: Prometheus scrapes the stack, and its rules and panels find data."""

import re
from functools import partial

import yaml

from tests.ecosystem.stack import PROMETHEUS, ComposeStack, wait_for
from tests.promql import alert_rules, panel_expressions
from tests.repository import ROOT

CONFIGURATION = ROOT / "docker" / "prometheus" / "prometheus.yml"
# Absent while no table is copied, no shard is split or holds readers back, and no session has
# failed; and the stack has no Subscriber.
NOW_AND_THEN = re.compile(
    r"shardstream_(?:copy|reshard|applier|frontier_held|producer_reconnects|subscriber)_"
)


def test_prometheus_scrapes_every_process(stack: ComposeStack) -> None:
    """Each target of the configuration answers Prometheus inside of the stack's network."""
    jobs = yaml.safe_load(CONFIGURATION.read_text())["scrape_configs"]
    targets = {each for job in jobs for group in job["static_configs"] for each in group["targets"]}
    assert targets

    wait_for("all targets are up", lambda: _up() >= targets)

    [watch] = PROMETHEUS.query("shardstream_watch_up")
    assert watch["value"][1] == "1"
    shards = {shard["shard"] for shard in stack.status()["shards"]}
    states = PROMETHEUS.query('shardstream_shard_state{state="serving"} == 1')
    assert {each["metric"]["shard"] for each in states} == shards


def test_every_alert_is_evaluated(stack: ComposeStack) -> None:
    """Prometheus has loaded all rules, and none fails on what the stack serves."""
    names = {rule["alert"] for rule in alert_rules()}
    assert stack.is_healthy()

    wait_for("all alerts are evaluated", lambda: set(PROMETHEUS.alerts().values()) == {"ok"})

    assert PROMETHEUS.alerts().keys() == names


def test_every_panel_shows_something(stack: ComposeStack) -> None:
    """Each panel has data of the stack, but for those of what happens now and then only."""
    expressions = panel_expressions()
    always = [each for each in expressions if not NOW_AND_THEN.search(each)]
    assert stack.is_healthy()
    assert len(always) > len(expressions) / 2

    # Rates need two scrapes.
    for each in always:
        wait_for(f"there is data of {each}", partial(PROMETHEUS.query, each))

    for each in expressions:
        PROMETHEUS.query(each)  # fails on what is not valid


def _up() -> set[str]:
    return {each["metric"]["instance"] for each in PROMETHEUS.query("up == 1")}
