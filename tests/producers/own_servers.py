"""Servers with options of their own, one per set of options."""

from collections.abc import Mapping
from pathlib import Path

from event_token import Flavor
from shardstream.local.database_server import NOT_DURABLE, LocalAccount, LocalDatabase
from tests.database_servers import DatabaseFixture, end

FIRST_SERVER_ID = 9200


class OwnServers:
    """Servers with options of their own, each started for the first case that asks for it."""

    def __init__(self, folder: Path, kinds: Mapping[Flavor, type[LocalDatabase]]) -> None:
        self._folder = folder
        self._kinds = kinds
        self._started: list[LocalDatabase] = []
        self.running: dict[tuple[Flavor, tuple[str, ...]], DatabaseFixture] = {}

    def with_options(self, flavor: Flavor, options: tuple[str, ...]) -> DatabaseFixture:
        found = self.running.get((flavor, options))
        if found is None:
            number = len(self._started)
            server = self._kinds[flavor](
                self._folder / str(number),
                server_id=FIRST_SERVER_ID + number,
                account=LocalAccount("shardstream", "of this test alone"),
                extra_args=(*NOT_DURABLE, *options),
                die_with_parent=True,
            )
            self._started.append(server)
            server.start()
            found = self.running[flavor, options] = DatabaseFixture(server)
        return found

    def end(self) -> None:
        for server in self._started:
            end(server)
