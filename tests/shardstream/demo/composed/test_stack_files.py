"""The files of docker/ agree with the product that they run."""

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from event_token import Flavor
from resharding.servers import NEEDED_TO_SWITCH
from shardstream.commands.app import app
from shardstream.demo.composed.app import (
    APPLIER_PORT,
    PRODUCER_PORT,
    SCRAPED_FOLDER,
    ScrapedFile,
)
from shardstream.demo.composed.app import app as shop_app
from shardstream.demo.composed.pages import CACHE, KEYS, KEYSPACE, PASSWORD_VARIABLE
from shardstream.demo.shop import (
    APPLICATION,
    DATABASE,
    SHARDING_COLUMNS,
    SOURCE,
    TARGETS,
    VINDEX,
)
from shardstream.settings.model import load_settings
from tests.repository import ROOT

DOCKER = ROOT / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
# Of all processes but `serve`.
JOB = "shardstream"
OURS = {name: each for name, each in SERVICES.items() if "SHARDSTREAM" in each["image"]}


def test_the_settings_are_those_of_the_shop() -> None:
    """Shards, targets, vindexes and the cache are what the shop's program expects."""
    settings = load_settings(DOCKER / "shardstream.toml")

    keyspace = settings.keyspace(KEYSPACE)
    assert SOURCE in keyspace.shards
    assert set(TARGETS) == keyspace.targets.keys()
    found = {v.table: (v.database, v.column, v.vindex) for v in keyspace.vindexes}
    columns = SHARDING_COLUMNS.items()
    assert found == {table: (DATABASE, column, VINDEX) for table, column in columns}
    assert settings.cache(CACHE).keys.rpartition(":")[2] == "KEYS"
    assert KEYS is not None
    assert keyspace.reshard is not None
    assert keyspace.reshard.application_accounts == (f"{APPLICATION}@%",)


def test_the_servers_of_the_settings_are_services() -> None:
    """Every host that the settings name is a service, and every password is set."""
    settings = load_settings(DOCKER / "shardstream.toml")
    servers = [
        server
        for shard in settings.keyspace(KEYSPACE).all_shards.values()
        for server in shard.servers
    ]

    assert {server.host for server in servers} <= SERVICES.keys()
    assert settings.kafka.bootstrap_servers.partition(":")[0] in SERVICES
    wanted = {server.password_env for server in servers} | {PASSWORD_VARIABLE}
    for service in OURS.values():
        assert wanted <= service["environment"].keys()


@pytest.mark.parametrize("name", sorted(OURS))
def test_each_command_of_the_stack_exists(name: str) -> None:
    """What a service runs is a command, with options that it has."""
    service = OURS[name]
    program = shop_app if "entrypoint" in service else app
    verb, *arguments = service["command"]
    command = typer.main.get_command(program)
    context = command.make_context("shardstream", [verb, *arguments], resilient_parsing=True)
    found = command.get_command(context, verb)  # type: ignore[attr-defined]

    found.make_context(verb, arguments)  # raises what is wrong with them


def test_what_prometheus_scrapes_is_served() -> None:
    """Every target of the configuration is a service that serves its metrics there."""
    config = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())
    places = [
        place
        for job in config["scrape_configs"]
        for group in job["static_configs"]
        for place in group["targets"]
    ]

    assert places
    for place in places:
        name, _, port = place.partition(":")
        command = OURS[name]["command"]
        assert command[command.index("--http") + 1].endswith(f":{port}")


def test_prometheus_finds_what_a_split_starts(tmp_path: Path) -> None:
    """Each target names its processes where Prometheus looks, by a name of the stack's network."""
    targets = [name for name, each in OURS.items() if each["command"][0] == "target"]
    config = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())
    [files] = [job["file_sd_configs"] for job in config["scrape_configs"] if job["job_name"] == JOB]
    for name in targets:
        file = ScrapedFile(SERVICES[name]["hostname"], tmp_path)
        for ports in ([], [PRODUCER_PORT, APPLIER_PORT], [PRODUCER_PORT]):
            file.name(ports)

    found = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]

    assert [places for [group] in found for places in group["targets"]] == [
        f"{name}:{PRODUCER_PORT}" for name in sorted(targets)
    ]
    assert files[0]["files"] == [f"{SCRAPED_FOLDER}/*.json"]
    for name in (*targets, "prometheus"):
        assert f"scraped:{SCRAPED_FOLDER}" in {
            volume.removesuffix(":ro") for volume in SERVICES[name]["volumes"]
        }


def test_the_image_gets_the_pages_that_the_package_links_to() -> None:
    """A link of the package whose page is not sent to the build would break it."""
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    links = [path for path in (ROOT / "shardstream").rglob("*") if path.is_symlink()]

    assert links
    assert {f"!{path.resolve().relative_to(ROOT)}" for path in links} <= set(sent)


def test_grafana_finds_the_dashboard_and_prometheus() -> None:
    """The files that Grafana reads lie where its provisioning looks, and name a service."""
    provisioning = DOCKER / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "shardstream.yml").read_text())[
        "providers"
    ]
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())[
        "datasources"
    ]
    mounts = {
        inside: (DOCKER / outside).resolve()
        for outside, inside, _ in (each.split(":") for each in SERVICES["grafana"]["volumes"])
    }

    assert all(path.exists() for path in mounts.values())
    assert f"{provider['options']['path']}/shardstream.json" in mounts
    assert source["url"].removeprefix("http://").partition(":")[0] in SERVICES


def test_grafana_knows_every_field_of_the_dashboard() -> None:
    """Grafana's own model of a dashboard, of its panels and of their queries keeps all of it."""
    register_default_plugins()
    dashboard = json.loads((DOCKER / "grafana" / "shardstream.json").read_text())

    kept = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))

    assert list(_missing(dashboard, kept, "dashboard")) == []


def _missing(wanted: Any, kept: Any, where: str) -> Iterator[str]:
    """Name each field whose value is not among what was kept."""
    if isinstance(wanted, dict) and isinstance(kept, dict):
        for name, value in wanted.items():
            yield from _missing(value, kept.get(name, ...), f"{where}.{name}")
    elif isinstance(wanted, list) and isinstance(kept, list) and len(wanted) == len(kept):
        for i, (one, other) in enumerate(zip(wanted, kept, strict=True)):
            yield from _missing(one, other, f"{where}[{i}]")
    elif wanted != kept:
        yield where


def test_the_account_that_reshards_has_the_grants_that_it_needs() -> None:
    """The grants of the stack are those that the switch asks for."""
    script = (DOCKER / "mysql" / "accounts.sql").read_text()
    found = re.search(r"GRANT ([^;]*?)\s+ON \*\.\* TO resharder", script)

    assert found is not None
    granted = {each.strip() for each in found[1].split(",")}
    assert granted == set(NEEDED_TO_SWITCH[Flavor.MYSQL])


def test_the_image_gets_the_locked_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image's build installs the dependencies of the extras in the versions of the lock."""
    for name in ("pyproject.toml", "requirements.lock"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(str(DOCKER / "dependencies.py"))["main"]

    main(["spark"])

    assert "pyspark>=4.2\n" in (tmp_path / "wanted.txt").read_text()
    versions = (tmp_path / "versions.txt").read_text().splitlines()
    assert [v for v in versions if v.startswith("pyspark==")]
    assert not [v for v in versions if "\\" in v or "--hash" in v]
