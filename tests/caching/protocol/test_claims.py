"""Rule 9 with two invalidators: what befalls a change that is applied while a floor is made."""

from itertools import islice

import pytest

from tests.caching.protocol.actors import ROWS, Invalidator, World, floor_name, redis_client

KEY, ROW, BUCKET = "k20", "r20", 0
# More steps than an invalidator needs for one change.
STEPS_MAX = 50


def get(world: World) -> None:
    """Get the key from the replica, fill it, and get it again."""
    servers = {row: world.database.serving(row).replica for row in ROWS[KEY]}
    for _ in range(2):
        for _ in redis_client(world, KEY, servers, []):
            pass


@pytest.mark.parametrize("left_out", [frozenset[str](), frozenset(("9-claim",))], ids=str)
def test_a_change_that_is_applied_while_a_floor_is_made(left_out: frozenset[str]) -> None:
    """Rule 9: the ends of the logs are asked for, a change is applied, and the maker dies.

    Without the claim the floor lies below the change, which nobody applies again: the next
    invalidator begins where the other one has published.
    """
    world = World(left_out=left_out)
    maker, other = Invalidator(world, in_two_steps=False), Invalidator(world, in_two_steps=False)
    shard = world.database.serving(ROW)
    world.database.catch_up(shard, len(shard.log))
    for each in (maker, other):
        list(islice(each.run(), STEPS_MAX))
    del world.nodes[0].contents[floor_name(BUCKET)]

    making = maker._make_wanted()
    list(islice(making, 2))
    assert world.database.write(ROW) is not None
    list(other._apply(shard.log[-1]))
    list(making)
    get(world)

    assert (world.violations != []) == bool(left_out)
    assert (world.hits != 0) == bool(left_out)
