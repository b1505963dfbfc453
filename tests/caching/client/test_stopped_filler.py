"""A process that is stopped between query and fill, on a real Redis."""

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest

from shardstream.local.cache_server import RedisServer
from tests.caching.client.model import Model
from tests.caching.stores.redis_stores import open_redis, redis_url
from tests.repository import ROOT
from tests.stopped_process import stopped


@pytest.mark.servers
@pytest.mark.parametrize("is_changed", [False, True])
def test_a_filler_is_stopped_between_query_and_fill(
    redis_servers: Sequence[RedisServer], *, is_changed: bool
) -> None:
    """R01: when it goes on, it fills in what it read only if nothing was applied meanwhile."""
    model = Model(open_redis(redis_servers))
    layout = model.opened.layout
    token = model.database.shards["-80"].end().to_string()
    program = [sys.executable, "-m", "tests.caching.client.stopped_filler"]
    arguments = [redis_url(redis_servers), layout.cache, str(layout.buckets), token]

    with subprocess.Popen(
        [*program, *arguments], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as filler:
        try:
            assert filler.stdin is not None
            assert filler.stdout is not None
            assert filler.stdout.readline() == "read\n"
            with stopped(filler.pid):
                print(file=filler.stdin, flush=True)
                if is_changed:
                    model.write("r20")
                    model.apply()
                assert model.cached("r20") is None
            value, counters = json.loads(filler.stdout.readline())
        finally:
            filler.kill()  # also one that is stopped

    assert value == {"r20": 1}
    assert model.cached("r20") == (None if is_changed else {"r20": 1})
    assert counters.get("fills_refused_older", 0) == is_changed
    model.opened.floors.close()
    model.opened.store.close()
