"""Takes over the topics of a prefix for a new run, and tells where they stand."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce

from event_token.position import StreamPosition
from spark_consumers.errors import TargetConflict
from spark_consumers.table_topics.batch_writer import TaskIdentity
from spark_consumers.table_topics.chosen_tables import check_tables
from spark_consumers.table_topics.decision import earliest_of
from spark_consumers.table_topics.marker import Marker, Owner, check_owner
from spark_consumers.table_topics.positions import read_marker
from spark_consumers.table_topics.transaction import TaskTransaction
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_positions_topic

# The transactional ids of tasks; before the first run there is no generation.
_NO_GENERATION = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write, and the position to read from; None where nothing is written yet."""

    owner: Owner
    position: StreamPosition | None


def claim_topics(config: ClientConfig, keyspace: str, prefix: str, wanted: Owner) -> Claim:
    """Fence all tasks of earlier runs, and write a greater generation into each marker.

    All ids are fenced before one of them is written, so that of two runs that claim at the same
    time one is fenced and the other has the greater generation. `wanted`: the owner-to-be, whose
    generation does not count. TargetConflict when the topics were begun with other numbers of tasks
    or partitions, another key scope or key range, or when an earlier run left out a table.
    """
    provision_positions_topic(config)
    with ExitStack() as stack:
        markers: list[Marker | None] = []
        transactions = []
        for task in range(wanted.tasks):
            found = TaskIdentity(config, keyspace, prefix, task, wanted)
            transaction = stack.enter_context(TaskTransaction(config, found.transactional_id))
            transaction.fence()
            markers.append(read_marker(config, found.transactional_id, found.partition))
            transactions.append((found, transaction))
        known = [marker for marker in markers if marker is not None]
        generation = max((marker.owner.generation for marker in known), default=_NO_GENERATION) + 1
        owner = replace(wanted, generation=generation)
        for before in known:
            check_owner(before.owner, owner, transactions[0][0].transactional_id)
            if before.end is not None:
                check_tables(config, prefix, before.owner.tables, owner.tables)
        # A first run that died while it claimed leaves some tasks without a marker.
        if len(known) < wanted.tasks and any(marker.end is not None for marker in known):
            raise TargetConflict(
                f"{wanted.tasks - len(known)} of the {wanted.tasks} tasks of {prefix} have no "
                f"position in _shardstream.positions, the others have: records were removed from "
                f"it. Begin new topics under another --prefix"
            )
        for (task_of, transaction), marker in zip(transactions, markers, strict=True):
            before = marker or Marker(owner)
            transaction.begin()
            # The tables are those of the marker's batch.
            now = replace(owner, tables=before.owner.tables)
            transaction.write_marker(replace(before, owner=now), task_of.partition)
            transaction.flush()
            transaction.commit()
    return Claim(owner, _position(known))


def _position(markers: list[Marker]) -> StreamPosition | None:
    """Return where the task that is furthest behind stands.

    A crash in the first batch leaves tasks without an end: that batch begins again.
    """
    begun = [marker for marker in markers if marker.end is not None]
    if not begun:
        return None
    found = [m.end if len(begun) == len(markers) else m.start for m in begun]
    return reduce(earliest_of, [position for position in found if position is not None])
