"""Positions of invalidators: their stored form, and which of two is further."""

from caching.invalidating.log import PublishedPosition, ancestors_of, earliest, reaches
from event_token import ShardPosition, StreamPosition
from topics.keyspace.topology import ReshardEntry, ShardEntry, ShardState, Topology

ANCESTORS = ancestors_of(
    Topology(
        "shop",
        2,
        (
            *(ShardEntry(name) for name in ("-40.2", "40-")),
            *(ShardEntry(name, ShardState.RETIRED) for name in ("-80", "80-", "-40", "40-80")),
        ),
        reshards=(
            ReshardEntry("r1", ("-80",), ("-40", "40-80"), "COMPLETED", 10),
            ReshardEntry("r2", ("40-80", "80-"), ("40-",), "COMPLETED", 20),
            ReshardEntry("r3", ("-40",), ("-40.2",), "COMPLETED", 30),
        ),
    )
)


def at(epoch: int = 0, **seqs: int) -> StreamPosition:
    """A position; shards are written as s_80 for -80, s80_ for 80-, s40_80 for 40-80."""
    names = {name[1:].replace("_", "-").replace("x", "."): seq for name, seq in seqs.items()}
    shards = {name: ShardPosition(seq + 1, seq, None) for name, seq in names.items()}
    return StreamPosition(epoch, epoch * 10, shards)


def test_the_stored_form() -> None:
    """A position is stored with a count that moves; other bytes are no position."""
    published = PublishedPosition(258, at(s_80=3, s80_=4))

    stored = published.to_bytes()

    assert stored[:9] == b"\x53\x02\x01\0\0\0\0\0\0"
    assert PublishedPosition.parse(stored) == published
    for broken in (None, b"", stored[:9], b"\x52" + stored[1:], stored[:-3], stored[:9] + b"\xff"):
        assert PublishedPosition.parse(broken) is None


def test_a_position_reaches_another_on_every_shard() -> None:
    """One shard that is behind makes a position not reach another, whatever the rest is."""
    assert reaches(at(s_80=3, s80_=4), at(s_80=3, s80_=2), ANCESTORS)
    assert not reaches(at(s_80=3, s80_=4), at(s_80=4, s80_=2), ANCESTORS)


def test_a_target_reaches_its_sources() -> None:
    """A reader of a target has read the sources to END; one of a source has not read a target."""
    before, split, merged = (
        at(s_80=9, s80_=9),
        at(1, s_40=1, s40_80=1, s80_=5),
        at(2, s_40=1, s40_=1),
    )

    assert reaches(split, at(s_80=9, s80_=5), ANCESTORS)
    assert not reaches(split, before, ANCESTORS)  # 80- is behind
    assert reaches(merged, before, ANCESTORS)
    assert reaches(merged, split, ANCESTORS)
    assert not reaches(before, split, ANCESTORS)
    assert not reaches(split, merged, ANCESTORS)
    assert not reaches(at(2, s_40=1, s40_80=1, s80_=5), merged, ANCESTORS)


def test_hops_in_another_order_reach_neither() -> None:
    """Two readers that hopped over different reshards: neither is further than the other."""
    one, other = at(1, s_40=1, s40_80=1, s80_=5), at(1, s_80=5, s80_=6)

    assert not reaches(one, other, ANCESTORS)
    assert not reaches(other, one, ANCESTORS)
    assert earliest([one, other], ANCESTORS) == at(1, s_80=5, s80_=5)


def test_the_earliest_place_leaves_nothing_out() -> None:
    """Per shard the least; before a reshard if one position is."""
    before, split, merged = (
        at(s_80=9, s80_=9),
        at(1, s_40=1, s40_80=1, s80_=5),
        at(2, s_40=3, s40_=1),
    )

    assert earliest([at(s_80=3, s80_=4), at(s_80=2, s80_=6)], ANCESTORS) == at(s_80=2, s80_=4)
    assert earliest([split, before], ANCESTORS) == at(s_80=9, s80_=5)
    assert earliest([merged, split], ANCESTORS) == at(1, s_40=1, s40_80=1, s80_=5)
    assert earliest([merged, before], ANCESTORS) == at(s_80=9, s80_=9)
    for each in (before, split, merged):
        assert reaches(each, earliest([before, split, merged], ANCESTORS), ANCESTORS)
