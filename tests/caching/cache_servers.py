"""Real Redis and memcached servers for tests: started on demand, killed with pytest."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from redis import Redis

from shardstream.local.cache_server import CacheServer, RedisServer
from shardstream.local.local_server import free_ports
from tests.waiting import wait_for

SLOTS = 16_384

S = TypeVar("S", bound=CacheServer)
StartServer = Callable[..., S]


@contextmanager
def started(servers: Sequence[S]) -> Iterator[Sequence[S]]:
    """Start servers and kill them at the end."""
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.finish_start()
        yield servers
    finally:
        for server in servers:
            server.kill()


def starter(kind: type[S], folder: Path, running: list[S]) -> StartServer[S]:
    """A function that starts servers with arguments of their own and adds them to `running`."""

    def start(*extra_args: str) -> S:
        server = kind(folder / f"{len(running)}", extra_args=extra_args, die_with_parent=True)
        running.append(server)
        server.start()
        return server

    return start


def cluster_member(folder: Path) -> RedisServer:
    """A server that can join a cluster; it never takes itself or another one for dead."""
    return RedisServer(
        folder,
        extra_args=(
            *("--cluster-enabled", "yes", "--cluster-node-timeout", "600000"),
            *("--cluster-port", str(free_ports(1)[0])),
        ),
        die_with_parent=True,
    )


def admin(server: RedisServer) -> "Redis":
    """A client for a test's own commands."""
    return Redis(host=server.host, port=server.port)


def command(server: RedisServer, *words: str | bytes | int) -> Any:
    """Run one command; its reply."""
    return admin(server).execute_command(*words)  # type: ignore[no-untyped-call]


def set_password(server: RedisServer, password: str) -> None:
    """Give user `app` a password, and end its connections."""
    command(server, "ACL", "SETUSER", "app", "reset", "on", f">{password}", "~*", "+@all")
    admin(server).client_kill_filter(user="app")


def form_cluster(primaries: Sequence[RedisServer], replicas: Sequence[RedisServer] = ()) -> None:
    """Join servers to a cluster in which all slots are served; replicas are the first one's."""
    first = primaries[0]
    for number, server in enumerate(primaries):
        begin, end = (SLOTS * each // len(primaries) for each in (number, number + 1))
        command(server, "CLUSTER ADDSLOTSRANGE", begin, end - 1)
        command(server, "CLUSTER SET-CONFIG-EPOCH", number + 1)
    everyone = [*primaries, *replicas]
    for server in everyone[1:]:
        bus = server.extra_args[server.extra_args.index("--cluster-port") + 1]
        command(first, "CLUSTER MEET", server.host, server.port, bus)
    wait_for("the cluster forms", lambda: all(_knows(each, len(everyone)) for each in everyone))
    for server in replicas:
        identity = command(first, "CLUSTER MYID").decode()
        command(server, "CLUSTER REPLICATE", identity)
        wait_for("the replica is in sync", lambda server=server: _is_in_sync(server))  # type: ignore[misc]


def _knows(server: RedisServer, count: int) -> bool:
    """Whether a server sees all others, and all slots served."""
    said = command(server, "CLUSTER INFO")
    text = said.decode() if isinstance(said, bytes) else str(said)
    return "'cluster_state': 'ok'" in text and f"'cluster_known_nodes': '{count}'" in text


def _is_in_sync(server: RedisServer) -> bool:
    return admin(server).info("replication").get("master_link_status") == "up"
