"""Real Redis servers that come back older than they were, or elsewhere, in mid-run (H7)."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from redis.crc import key_slot

from caching.errors import Reconnected, StoreUnreachable
from caching.protocol.layout import GROUPS
from caching.stores.store import KeyChange
from shardstream.local.cache_server import RedisServer
from tests.caching.cache_servers import (
    SLOTS,
    StartServer,
    admin,
    cluster_member,
    command,
    form_cluster,
    started,
)
from tests.caching.protocol.tokens import token
from tests.caching.stores.opened import RANGE, Opened
from tests.caching.stores.redis_stores import open_redis
from tests.stopped_process import stop
from tests.waiting import wait_for


def check_rewind(opened: Opened, save: Callable[[], object], rewind: Callable[[], object]) -> None:
    """Let the store come back as it was when it was saved: its invalidator notices.

    In between a change is applied and acknowledged, and nothing is published: the stored position
    is the one that the invalidator has seen last.
    """
    generation = opened.make(["user:1", "user:2"], token("-", 5))
    opened.put("user:1", generation, token("-", 5))
    nodes = opened.floors.nodes
    assert opened.floors.publish(RANGE, dict.fromkeys(nodes, (None, b"S1"))) == {}
    save()
    done = opened.floors.invalidate([KeyChange("user:1", token("-", 6))])
    assert (done.floors_raised, done.values_removed) == (1, 1)

    rewind()

    with pytest.raises((Reconnected, StoreUnreachable)):
        opened.floors.invalidate([KeyChange("user:2", token("-", 7))])
    with pytest.raises((Reconnected, StoreUnreachable)):
        opened.floors.publish(RANGE, dict.fromkeys(nodes, (b"S1", b"S2")))
    resumed: dict[str, bytes | None] = {}
    wait_for("resumed", lambda: _works(lambda: resumed.update(opened.floors.resume(RANGE))))
    assert resumed == dict.fromkeys(nodes, b"S1")
    # The client has the value back that was removed, until the change is applied once more.
    wait_for("the client reads again", lambda: _works(lambda: opened.store.read(["user:1"])))
    assert opened.slot("user:1") is not None
    floor = opened.floor("user:2")
    assert floor is not None
    assert floor.tokens == {"-": token("-", 5)}
    opened.floors.invalidate([KeyChange("user:1", token("-", 6))])
    assert opened.slot("user:1") is None
    assert opened.floors.publish(RANGE, dict.fromkeys(nodes, (b"S1", b"S2"))) == {}


def _works(call: Callable[[], object]) -> bool:
    try:
        call()
    except StoreUnreachable:
        return False
    return True


def test_a_restore_from_an_old_snapshot_is_noticed(start_redis: StartServer[RedisServer]) -> None:
    """H7: killed after an acknowledged invalidation, and started from the snapshot before it."""
    server = start_redis()

    def restart() -> None:
        server.kill()
        server.start()

    check_rewind(open_redis([server]), lambda: admin(server).save(), restart)


def test_a_promoted_replica_is_noticed(real_servers: None, tmp_path: Path) -> None:
    """H7, F31: the primary dies with an acknowledged invalidation that its replica never got."""
    with started([cluster_member(tmp_path / name) for name in ("a", "b")]) as servers:
        primary, replica = servers
        form_cluster([primary], [replica])

        def cut_off() -> None:
            offset = admin(primary).info("replication")["master_repl_offset"]
            wait_for(
                "the replica has everything",
                lambda: admin(replica).info("replication")["slave_repl_offset"] >= offset,
            )
            assert replica.pid is not None
            stop(replica.pid)
            command(primary, "CLIENT KILL TYPE replica")

        def promote() -> None:
            primary.kill()
            assert replica.pid is not None
            os.kill(replica.pid, signal.SIGCONT)
            command(replica, "CLUSTER FAILOVER", "TAKEOVER")
            wait_for("promoted", lambda: admin(replica).info("replication")["role"] == "master")

        opened = open_redis([primary, replica])
        check_rewind(opened, cut_off, promote)


def test_a_group_that_moves_is_resumed(real_servers: None, tmp_path: Path) -> None:
    """A slot moves to another server: clients follow it, and the invalidator resumes its group."""
    with started([cluster_member(tmp_path / name) for name in ("a", "b")]) as servers:
        form_cluster(servers)
        opened = open_redis(servers)
        keys = [f"user:{number}" for number in range(200)]
        generation = opened.make(keys, token("-", 5))
        entry = opened.put("user:1", generation, token("-", 5))
        nodes = opened.floors.nodes
        assert opened.floors.publish(RANGE, dict.fromkeys(nodes, (None, b"S1"))) == {}
        group = opened.layout.group(opened.layout.bucket("user:1"))
        slot = key_slot(opened.layout.wanted_key(group).encode())
        source, target = servers if slot < SLOTS // 2 else reversed(servers)

        move_slot(slot, source, target)

        assert opened.slot("user:1") == entry.to_bytes()
        with pytest.raises((Reconnected, StoreUnreachable)):
            opened.floors.invalidate([KeyChange("user:1", token("-", 6))])
        resumed = opened.floors.resume(RANGE)
        assert resumed[str(group)] == b"S1"
        assert set(resumed.values()) == {b"S1"}
        assert len(resumed) < GROUPS
        done = opened.floors.invalidate(KeyChange(key, token("-", 6)) for key in keys)
        assert done.closed == frozenset()
        assert opened.slot("user:1") is None


def move_slot(slot: int, source: RedisServer, target: RedisServer) -> None:
    """Move a slot with its keys, as redis-cli does."""
    identities = [command(each, "CLUSTER MYID").decode() for each in (source, target)]
    command(target, "CLUSTER SETSLOT", slot, "IMPORTING", identities[0])
    command(source, "CLUSTER SETSLOT", slot, "MIGRATING", identities[1])
    while names := command(source, "CLUSTER GETKEYSINSLOT", slot, 100):
        command(source, "MIGRATE", target.host, target.port, "", 0, 60_000, "KEYS", *names)
    for each in (target, source):
        command(each, "CLUSTER SETSLOT", slot, "NODE", identities[1])
