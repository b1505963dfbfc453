"""The stack of docker/compose.yaml, started once for all tests of this folder."""

import os
from collections.abc import Iterator

import pytest
from testcontainers.compose import DockerCompose

from shardstream.local.fetching import cache_folder
from tests.ecosystem.docker_commands import FILE_VARIABLE, PROGRAM_VARIABLE
from tests.ecosystem.images import IMAGES, services_with_images
from tests.ecosystem.stack import ComposeStack, wait_for
from tests.repository import ROOT

# What the containers have printed, for whoever looks for the reason of a failure.
LOG = cache_folder() / "ecosystem-stack.log"


@pytest.fixture(scope="session")
def stack() -> Iterator[ComposeStack]:
    """The stack with its traffic, all services healthy."""
    has_standins = not IMAGES.keys().isdisjoint(os.environ)
    compose = DockerCompose(
        ROOT / "docker",
        compose_file_name=os.environ[FILE_VARIABLE],
        docker_command_path=os.environ[PROGRAM_VARIABLE],
        # The images are built already where they have names of their own.
        build=not has_standins,
        profiles=["observability"],
        services=services_with_images() if has_standins else [],
        # Debian's Compose knows no --wait; it waits for what others depend on.
        wait=False,
    )
    try:
        compose.start()
        running = ComposeStack(compose)
        wait_for("all services are healthy", running.is_healthy)
        made = ("test", "-d", "/lake/commerce/_delta_log")
        wait_for("Spark writes the change log", lambda: running.succeeds("spark", *made))
        yield running
    finally:
        LOG.write_text("".join(compose.get_logs()))
        compose.stop()
