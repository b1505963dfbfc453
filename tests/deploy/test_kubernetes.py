"""Manifests for Kubernetes: valid by its published schemas, one producer a shard."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from event_token.errors import UsageError
from shardstream.commands.manifests import producer_manifests
from shardstream.settings.model import load_settings

ROOT = Path(__file__).parents[2]
BASE = ROOT / "deploy/kubernetes/base"
MONITORING = ROOT / "deploy/kubernetes/monitoring"


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def test_the_manifests_are_valid() -> None:
    """Every resource that the kustomization lists holds to Kubernetes's own schemas, strictly."""
    version = kubernetes_validate.latest_version()
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    generated = {name for each in kustomization["configMapGenerator"] for name in each["files"]}
    files = {*kustomization["resources"], *generated, "kustomization.yaml"}

    assert files == {path.name for path in BASE.iterdir()}
    for name in kustomization["resources"]:
        for document in documents((BASE / name).read_text()):
            kubernetes_validate.validate(document, version, strict=True)


def test_every_shard_has_a_producer_that_cannot_run_twice() -> None:
    """One Deployment a shard, of one replica that ends before its successor starts."""
    settings = load_settings(BASE / "shardstream.toml")
    text = producer_manifests(settings, "commerce", "shardstream")
    found = documents(text)

    assert text == (BASE / "producers.yaml").read_text()
    assert [document["metadata"]["name"] for document in found] == [
        "produce-commerce-start-80",
        "produce-commerce-80-end",
    ]
    for document, shard in zip(found, ("-80", "80-"), strict=True):
        spec = document["spec"]
        assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
        assert spec["template"]["spec"]["containers"][0]["args"][-2:] == ["commerce", shard]


def test_the_operator_gets_the_same_alerts() -> None:
    """The PrometheusRule is rules.yml, and the PodMonitor finds the ports of all Deployments."""
    (rule,) = documents((MONITORING / "rules.yaml").read_text())
    (monitor,) = documents((MONITORING / "podmonitor.yaml").read_text())
    alerts = yaml.safe_load((ROOT / "docker/prometheus/rules.yml").read_text())
    watched = {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]}
    (selected,) = monitor["spec"]["selector"]["matchExpressions"]
    deployments = [
        document["spec"]["template"]
        for name in ("producers.yaml", "serve.yaml")
        for document in documents((BASE / name).read_text())
        if document["kind"] == "Deployment"
    ]

    assert rule["spec"] == alerts
    for template in deployments:
        assert template["metadata"]["labels"][selected["key"]] in selected["values"]
        (container,) = template["spec"]["containers"]
        assert {port["name"] for port in container["ports"]} <= watched


@pytest.mark.parametrize(
    ("keyspace", "shards", "said"),
    [
        ("Shop_a", ("-80", "80-"), None),
        ("k" * 60, ("-",), "too long"),
    ],
)
def test_names_of_deployments_are_labels(
    tmp_path: Path, keyspace: str, shards: tuple[str, ...], said: str | None
) -> None:
    """A keyspace that makes no valid name is refused before anything is printed."""
    config = tmp_path / "shardstream.toml"
    sections = "".join(
        f'[keyspaces."{keyspace}".shards."{shard}"]\nflavor = "mysql"\n'
        f'servers = [{{host = "a", user = "b"}}]\n'
        for shard in shards
    )
    config.write_text(f'[kafka]\nbootstrap_servers = "kafka:9092"\n{sections}')
    settings = load_settings(config)

    if said is not None:
        with pytest.raises(UsageError, match=said):
            producer_manifests(settings, keyspace, "shardstream")
        return
    for document in documents(producer_manifests(settings, keyspace, "registry/image:1.2")):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
