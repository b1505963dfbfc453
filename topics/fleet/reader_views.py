"""The lag of named readers and of appliers, from their reports and the shards' records. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from topics.names import ApplierName
from topics.readers.feed import RUNNING_S
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


@dataclass(frozen=True, slots=True)
class ApplierView:
    """The applier of a reshard's target, by its own report.

    `behind_ms`: the age of what the target has from all sources; of an applier that has reported,
    when it did so, and of one that has not for RUNNING_S, now. `said_ms`: as of a ReaderView.
    """

    reshard_id: str
    target: str
    behind_ms: int
    said_ms: int
    host: str

    @property
    def is_silent(self) -> bool:
        """Whether several reports are missing."""
        return self.said_ms > RUNNING_S * 1_000


def applier_views(
    readers: Sequence[NamedReader], reshard_ids: Collection[str], now_us: int
) -> tuple[ApplierView, ...]:
    """Return the views of the appliers of these reshards."""
    found = []
    for reader in readers:
        name, last = ApplierName.parse(reader.last.name), reader.last
        if name is None or name.reshard_id not in reshard_ids:
            continue
        said_ms = max(0, now_us - last.at_us) // 1_000
        as_of_us = now_us if said_ms > RUNNING_S * 1_000 else last.at_us
        behind_ms = max(0, as_of_us - last.position.frontier_us) // 1_000
        found.append(ApplierView(name.reshard_id, name.target, behind_ms, said_ms, last.host))
    return tuple(found)


def reader_views(
    readers: Sequence[NamedReader],
    records: Mapping[str, int],
    frontier_us: int | None,
    now_us: int,
) -> tuple[ReaderView, ...]:
    """Return the views of all readers; `records`: by shard, the `seq` of its last record."""
    return tuple(
        _view(reader, records, frontier_us, now_us)
        for reader in readers
        if ApplierName.parse(reader.last.name) is None
    )


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
