"""What the dashboard and the alerts ask Prometheus."""

import json
from typing import Any

import yaml

from tests.repository import ROOT

RULES = ROOT / "docker" / "prometheus" / "rules.yml"
DASHBOARD = ROOT / "docker" / "grafana" / "shardstream.json"
# What Grafana puts in their places.
VARIABLES = {"$keyspace": ".+", "$shard": ".+", "$__rate_interval": "1m"}


def panel_expressions() -> list[str]:
    """What the panels show, with values for the dashboard's variables."""
    found = []
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            found.append(expression)
    return found


def alert_rules() -> list[dict[str, Any]]:
    """The alerts, each with its name and its condition."""
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    rules = group["rules"]
    assert isinstance(rules, list)
    return rules
