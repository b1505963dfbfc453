"""The lag of named readers, from what they have reported and how far the shards are. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topics.readers.record import NamedReader


@dataclass(frozen=True, slots=True)
class ReaderView:
    """One named reader. `position` is where a restart would continue, as an opaque string.

    `behind_ms`: the frontier's time minus the reader's, None while there is no frontier.
    `events_behind`: by shard of the position, how many records its log has beyond it. `said_ms`:
    how long ago the reader reported, by its own clock. `failed`: how many reports of that process
    did not reach Kafka. `others`: the hosts, with versions, of other processes that report under
    the same name.
    """

    name: str
    key_range: str
    behind_ms: int | None
    events_behind: dict[str, int]
    said_ms: int
    epoch: int
    frontier_us: int
    position: str
    host: str
    version: str
    failed: int
    others: tuple[str, ...]


def reader_views(
    readers: Sequence[NamedReader],
    records: Mapping[str, int],
    frontier_us: int | None,
    now_us: int,
) -> tuple[ReaderView, ...]:
    """Return the views of all readers; `records`: by shard, the `seq` of its last record."""
    return tuple(_view(reader, records, frontier_us, now_us) for reader in readers)


def _view(
    reader: NamedReader, records: Mapping[str, int], frontier_us: int | None, now_us: int
) -> ReaderView:
    last = reader.last
    position = last.position
    behind_us = None if frontier_us is None else max(0, frontier_us - position.frontier_us)
    return ReaderView(
        name=last.name,
        key_range=str(last.key_range),
        behind_ms=None if behind_us is None else behind_us // 1_000,
        events_behind={
            shard: max(0, records[shard] - at.seq)
            for shard, at in position.shards.items()
            if shard in records
        },
        said_ms=max(0, now_us - last.at_us) // 1_000,
        epoch=position.epoch,
        frontier_us=position.frontier_us,
        position=position.to_string(),
        host=last.host,
        version=last.version,
        failed=last.failed,
        others=tuple(f"{other.host} ({other.version})" for other in reader.others),
    )
