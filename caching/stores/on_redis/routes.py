"""Which server holds which group, without I/O."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from redis.crc import key_slot

from caching.errors import LayoutError, StoreUnreachable
from caching.protocol import Layout
from caching.protocol.layout import GROUPS

SCHEMES = ("redis", "rediss", "unix")
CLUSTER_SUFFIX = "+cluster"
PORT_DEFAULT = 6379


@dataclass(frozen=True, slots=True)
class Address:
    """A server; `host` is the path of a Unix socket if `port` is 0."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else self.host


@dataclass(frozen=True, slots=True)
class Location:
    """A URL taken apart: the servers that it names, and how to connect to each of them."""

    seeds: tuple[Address, ...]
    is_cluster: bool
    before: str
    after: str

    @classmethod
    def parse(cls, url: str) -> "Location":
        """Read `redis://`, `rediss://`, `unix://`, or `redis+cluster://a:1,b:2`; LayoutError."""
        parts = urlsplit(url)
        scheme = parts.scheme.removesuffix(CLUSTER_SUFFIX)
        is_cluster = scheme != parts.scheme
        if scheme not in SCHEMES or (is_cluster and scheme == "unix"):
            raise LayoutError(
                f"a Redis store has a URL of {', '.join(SCHEMES)}, or redis+cluster, not of "
                f"'{parts.scheme}'"
            )
        account, at, hosts = parts.netloc.rpartition("@")
        before, after = f"{scheme}://{account}{at}", parts._replace(scheme="", netloc="").geturl()
        if scheme == "unix":
            return cls((Address(parts.path, 0),), is_cluster, before, after)
        seeds = tuple(_address(host) for host in hosts.split(","))
        if len(seeds) > 1 and not is_cluster:
            raise LayoutError(f"several Redis servers are a cluster: {scheme}{CLUSTER_SUFFIX}://")
        return cls(seeds, is_cluster, before, after)

    def url(self, address: Address) -> str:
        """Return the URL of one server, as redis-py reads it."""
        return f"{self.before}{address if address.port else ''}{self.after}"


class Routes:
    """The server of each group; those of a cluster are asked for."""

    def __init__(self, location: Location, layout: Layout) -> None:
        """Know the only server of a location, or nothing of a cluster."""
        self.is_cluster = location.is_cluster
        self.is_known = not self.is_cluster
        self.address = [location.seeds[0]] * GROUPS
        self._seeds = location.seeds
        names = (layout.wanted_key(group).encode() for group in range(GROUPS))
        self._slots = [key_slot(each) for each in names]

    def candidates(self) -> list[Address]:
        """Return whom to ask for the cluster's slots."""
        return list(dict.fromkeys([*self.address, *self._seeds]))

    def forget(self) -> None:
        """Ask for a cluster's slots before the next call."""
        self.is_known = not self.is_cluster

    def learn(self, slots: Iterable[Sequence[Any]], asked: Address) -> None:
        """Take the reply of CLUSTER SLOTS; StoreUnreachable if a group has no server."""
        found: dict[int, Address] = {}
        for first, last, primary, *_ in slots:
            host = primary[0].decode() if primary[0] else asked.host
            for group, slot in enumerate(self._slots):
                if first <= slot <= last:
                    found[group] = Address(host, primary[1])
        if len(found) < GROUPS:
            raise StoreUnreachable(str(asked), f"the Redis cluster of {asked} does not serve all "
                                               "slots; CLUSTER INFO shows its state")  # fmt: skip
        self.address = [found[group] for group in range(GROUPS)]
        self.is_known = True


def _address(text: str) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        return Address(parts.hostname or "localhost", parts.port or PORT_DEFAULT)
    except ValueError as fault:
        raise LayoutError(f"'{text}' is not the address of a Redis server: {fault}") from fault
