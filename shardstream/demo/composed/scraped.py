"""Tells the stack's Prometheus what a split has started: its targets' processes come and go."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# A volume that Prometheus watches, see docker/prometheus/prometheus.yml.
FOLDER: Final = Path("/scraped")


class ScrapedFile:
    """A file of Prometheus' service discovery, with the addresses of one container."""

    def __init__(self, host: str, folder: Path = FOLDER) -> None:
        """Write nothing yet. `host`: the container's name in the stack's network."""
        self._host = host
        self._path = folder / f"{host}.json"
        self._ports: Sequence[int] | None = None

    def name(self, ports: Sequence[int]) -> None:
        """Name the ports to scrape from now on, if they are others than before. Raises OSError."""
        if ports == self._ports:
            return
        targets = [f"{self._host}:{port}" for port in ports]
        written = self._path.with_suffix(".part")
        written.write_text(json.dumps([{"targets": targets}]) + "\n")
        # At once: Prometheus may read it at any moment.
        written.replace(self._path)
        self._ports = ports
