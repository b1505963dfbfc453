"""What a stack consists of, and its state and settings files. Pure."""

import json
from collections.abc import Collection, Mapping
from itertools import pairwise

from pydantic import BaseModel, ConfigDict, Field

from event_token import Flavor, UsageError

DEFAULT_KEYSPACE = "commerce"
ACCOUNT_USER = "shardstream"
# A database server takes about 400 MB; with more than this it is no longer a local stack.
SHARDS_MAX = 16
STATE_VERSION = 1

PASSWORD_FILE = "password"  # noqa: S105 - the name of the file that holds it
SETTINGS_FILE = "shardstream.toml"


class StackShape(BaseModel):
    """The number of servers and their family, one database server per shard.

    `targets`: shards that a reshard fills, each with a server too. `redis` and `memcached`: a
    server each, which a stack can get later and keeps.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    flavor: Flavor
    shards: int = Field(ge=1, le=SHARDS_MAX)
    brokers: int = Field(ge=1)
    keyspace: str = DEFAULT_KEYSPACE
    targets: tuple[str, ...] = ()
    redis: bool = False
    memcached: bool = False

    def __str__(self) -> str:
        """Return it as on the command line."""
        servers = self.shards + len(self.targets)
        return f"{servers} x {self.flavor} and {self.brokers} x kafka"

    @property
    def caches(self) -> list[str]:
        """The kinds of the cache servers."""
        wanted = {"redis": self.redis, "memcached": self.memcached}
        return [kind for kind, is_wanted in wanted.items() if is_wanted]

    def with_caches_of(self, other: "StackShape") -> "StackShape":
        """Return this shape with the cache servers of both."""
        caches = {
            "redis": self.redis or other.redis,
            "memcached": self.memcached or other.memcached,
        }
        return self.model_copy(update=caches)


class StackState(BaseModel):
    """The state file of a stack's folder; ports and pids are in the servers' folders."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = STATE_VERSION
    shape: StackShape


class BrokerFacts(BaseModel):
    """One Kafka broker in `--json`: pid while it runs, address after its first start."""

    node_id: int
    address: str | None
    pid: int | None
    log: str


class DatabaseFacts(BaseModel):
    """One database server in `--json`: pid while it runs, port after its first start."""

    shard: str
    flavor: Flavor
    host: str
    port: int | None
    socket: str
    pid: int | None
    server_id: int
    root_user: str
    user: str
    password_file: str
    log: str


class CacheFacts(BaseModel):
    """One cache server in `--json`: pid while it runs, URL after its first start."""

    kind: str
    url: str | None
    pid: int | None
    log: str


class StackFacts(BaseModel):
    """A whole stack as `--json` shows it; `running` only if every server runs."""

    running: bool
    folder: str
    settings: str
    keyspace: str
    bootstrap_servers: str | None
    brokers: list[BrokerFacts]
    databases: list[DatabaseFacts]
    caches: list[CacheFacts] = []


def even_shards(count: int) -> list[str]:
    """Return the names of `count` shards of even key ranges: `-`; `-80`, `80-`; `-40`, `40-80`, ...

    Raises UsageError for a count that is not from 1 to `SHARDS_MAX`.
    """
    if not 1 <= count <= SHARDS_MAX:
        message = f"a stack has 1 to {SHARDS_MAX} shards, not {count}"
        raise UsageError(message)
    bounds = ["", *(f"{256 * i // count:02x}" for i in range(1, count)), ""]
    return [f"{low}-{high}" for low, high in pairwise(bounds)]


def settings_text(
    keyspace: str,
    flavor: Flavor,
    bootstrap_servers: str,
    addresses: Mapping[str, tuple[str, int]],
    targets: Collection[str] = (),
) -> str:
    """Return the `shardstream.toml` of a stack; `addresses` holds (host, port) by shard.

    `targets`: those of the shards that a reshard fills.
    """
    # A JSON string is a TOML basic string.
    quote = json.dumps
    lines = [
        "# Written by `shardstream local up` at each start of this stack.",
        "[kafka]",
        f"bootstrap_servers = {quote(bootstrap_servers)}",
        "",
        "[kafka.client]",
    ]
    for shard, (host, port) in addresses.items():
        kind = "targets" if shard in targets else "shards"
        server = (
            f"host = {quote(host)}, port = {port}, user = {quote(ACCOUNT_USER)}, "
            f"password_file = {quote(PASSWORD_FILE)}"
        )
        lines += [
            "",
            f"[keyspaces.{quote(keyspace)}.{kind}.{quote(shard)}]",
            f"flavor = {quote(flavor.value)}",
            f"servers = [{{ {server} }}]",
        ]
    return "\n".join(lines) + "\n"
