"""The last two minutes of each shard, so that a page that is opened shows them at once. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from topics.fleet.view import KeyspaceView

# The page shows two minutes, and a look takes place every second.
SAMPLES_MAX: Final = 120


@dataclass(frozen=True, slots=True)
class Sample:
    """How the shards of a keyspace were at a look: by shard, records per second and level."""

    at_us: int
    shards: Mapping[str, tuple[float, str]]


def next_samples(samples: Sequence[Sample], view: KeyspaceView, now_us: int) -> tuple[Sample, ...]:
    """Return the last samples after a look at `now_us`, the oldest first."""
    shards = {each.shard: (round(each.records_per_s, 1), each.level.value) for each in view.shards}
    return (*samples, Sample(now_us, shards))[-SAMPLES_MAX:]


def history_json(keyspaces: Mapping[str, Sequence[Sample]]) -> str:
    """Return the samples of all keyspaces, as `/history.json` does."""
    return json.dumps(
        {
            name: [{"at_us": sample.at_us, "shards": sample.shards} for sample in samples]
            for name, samples in keyspaces.items()
        }
    )
