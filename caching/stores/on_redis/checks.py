"""What a preflight asks of the servers of a store, without I/O."""

from collections.abc import Callable

from caching.findings import Findings, version_number
from caching.protocol import Layout
from caching.protocol.layout import GROUPS
from caching.stores.on_redis.scripts import Call
from caching.stores.on_redis.steps import Steps

# The first whose scripts replicate what they did, so that a replica has the same floors.
VERSION_MIN = (5,)


def check(layout: Layout, name_of: Callable[[int], str], *, is_cluster: bool) -> Steps[Findings]:
    """See `Store.check`: once per server, by its run id. `name_of` names the server of a group."""
    found = Findings()
    told = yield [Call(group, ("INFO", "server")) for group in range(GROUPS)]
    servers: dict[str, tuple[int, dict[str, str]]] = {}
    for group, text in enumerate(told):
        facts = _facts(text)
        servers.setdefault(facts.get("run_id", ""), (group, facts))
    for group, facts in servers.values():
        replies = yield [
            Call(group, ("INFO", "replication")),
            Call(group, ("INFO", "memory")),
            Call(group, ("EVAL", "return 1", 0)),
        ]
        where = f"Redis server {name_of(group)}"
        found.add(_of_server(where, facts | _facts(replies[0] + replies[1]), is_cluster=is_cluster))
    if found.problems:  # a member of a cluster, for one, may not have this key
        return found
    [stored] = yield [Call(0, ("GET", layout.layout_key()))]
    found.layout = None if stored is None else bytes(stored).decode(errors="replace")
    return found


def _of_server(where: str, facts: dict[str, str], *, is_cluster: bool) -> Findings:
    found = Findings()
    version = facts.get("redis_version", "")
    if version_number(version) < VERSION_MIN:
        found.problems.append(f"{where}: version {version}. Fix: Redis 5 or newer, or Valkey")
    mode = facts.get("redis_mode") or facts.get("server_mode")  # the name of it in Valkey
    if mode == "cluster" and not is_cluster:
        found.problems.append(
            f"{where}: it is a member of a Redis Cluster. Fix: a URL that begins with "
            f"redis+cluster://"
        )
    if facts.get("role") == "slave":
        found.problems.append(
            f"{where}: it is a replica of {facts.get('master_host')}:{facts.get('master_port')}. "
            f"Fix: name the primary"
        )
    policy = facts.get("maxmemory_policy", "")
    if policy.startswith("allkeys-"):
        found.warnings.append(
            f"{where}: maxmemory-policy={policy} also evicts floors, and then no value of their "
            f"buckets is a hit until they are made again. Fix: CONFIG SET maxmemory-policy "
            f"volatile-lru (values alone have a TTL)"
        )
    return found


def _facts(text: bytes) -> dict[str, str]:
    lines = bytes(text).decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
