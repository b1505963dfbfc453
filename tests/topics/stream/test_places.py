"""The places of events in a merged stream."""

from dataclasses import replace

from event_token import ShardPosition, StreamPosition
from tests.topics.records.events import insert
from tests.topics.shard_writer import ORDERS, UUID
from topics.records.vevent import TokenText
from topics.stream.delivery import Place, Trail

ORDER = (3, 1, 6, 4, 4, 2, 5)  # of counts in which places are asked for


def test_places_are_the_same_in_any_order() -> None:
    """A place does not depend on those that were asked for before it."""
    row = insert(ORDERS, {"id": 1, "note": ""})
    begin = StreamPosition(
        0, 7, {"-80": ShardPosition(5, 2, None), "80-": ShardPosition(9, 4, None)}
    )
    events = [
        replace(
            row,
            shard=shard,
            seq=seq,
            offset=seq + 10,
            last=seq != 5,
            token_text=TokenText(7 + seq, shard, f"{UUID}:1-{seq}"),
        )
        for shard, seq in (("-80", 3), ("80-", 5), ("80-", 6), ("-80", 4), ("-80", 5), ("80-", 7))
    ]

    def trail() -> Trail:
        made = Trail(Place.of(begin))
        for event in events:
            made.add(event)
        return made

    asked_before = trail()
    found = [asked_before.position_after(count) for count in ORDER]

    assert found == [trail().position_after(count) for count in ORDER]
    assert [position.to_string() for position in found] == [
        StreamPosition.from_string(position.to_string()).to_string() for position in found
    ]
    assert [found[0].shards[shard].seq for shard in ("-80", "80-")] == [3, 6]
    assert found[3].shards["80-"].token == events[2].token
