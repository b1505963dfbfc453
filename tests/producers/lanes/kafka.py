"""Kafka as the model of lanes needs it: partitions, transactional ids, markers. Pure values.

What is known of the real one: `init_transactions` ends what its id has open and refuses earlier
holders from then on; a commit is decided by the coordinator and reaches the partitions by markers.
A marker may become visible late (a new leader), or never: the brokers take a transaction for
complete while a partition has no leader. The next marker of the same id in that partition then
ends what the lost one should have ended.
"""

from enum import IntEnum
from typing import Final, NamedTuple

NOBODY: Final = -1


class Status(IntEnum):
    """What a reader may know of a record."""

    OPEN = 0
    COMMITTED = 1
    # Decided, and not visible yet.
    LATE = 2
    LATE_ABORT = 3
    # Decided, and the marker is lost.
    STUCK = 4


class Record(NamedTuple):
    """A record and the transactional id that wrote it; aborted ones are not kept."""

    number: int
    status: Status
    value: tuple[int, int, int]


Records = tuple[Record, ...]


class Phase(IntEnum):
    """How far a transactional id's transaction is, as its coordinator knows."""

    IDLE = 0
    ONGOING = 1
    COMMITTING = 2
    ABORTING = 3


class TransactionalId(NamedTuple):
    """Who called `init_transactions` last, and the partitions of the present transaction."""

    holder: int = NOBODY
    phase: Phase = Phase.IDLE
    partitions: tuple[int, ...] = ()


class Kafka(NamedTuple):
    """All partitions and transactional ids, each by its number."""

    partitions: tuple[Records, ...]
    ids: tuple[TransactionalId, ...]

    def with_id(self, number: int, changed: TransactionalId) -> "Kafka":
        """The same with one transactional id changed."""
        ids = (*self.ids[:number], changed, *self.ids[number + 1 :])
        return Kafka(self.partitions, ids)

    def with_partition(self, partition: int, records: Records) -> "Kafka":
        """The same with other records in one partition."""
        before, after = self.partitions[:partition], self.partitions[partition + 1 :]
        return Kafka((*before, records, *after), self.ids)

    def fence(self, number: int, holder: int) -> "Kafka | None":
        """One attempt of `init_transactions`; None while an earlier transaction is being ended.

        Where a transaction is open, it is aborted first, and the caller has to try again.
        """
        found = self.ids[number]
        if found.phase is Phase.ONGOING:
            return self.expire(number)
        if found.phase is not Phase.IDLE:
            return None
        return self.with_id(number, TransactionalId(holder))

    def expire(self, number: int) -> "Kafka":
        """Abort an open transaction, and refuse its holder."""
        found = self.ids[number]
        return self.with_id(number, TransactionalId(NOBODY, Phase.ABORTING, found.partitions))

    def write(self, number: int, partition: int, *values: tuple[int, int, int]) -> "Kafka":
        """Add records to the transaction of an id, which the caller holds."""
        found = self.ids[number]
        added = tuple(Record(number, Status.OPEN, value) for value in values)
        partitions = tuple(sorted({*found.partitions, partition}))
        kafka = self.with_id(number, TransactionalId(found.holder, Phase.ONGOING, partitions))
        return kafka.with_partition(partition, self.partitions[partition] + added)

    def commit(self, number: int) -> "Kafka":
        """Decide the transaction: from here on nobody can stop it."""
        return self.with_id(number, self.ids[number]._replace(phase=Phase.COMMITTING))

    def complete(
        self, number: int, exception: int = NOBODY, status: Status = Status.LATE
    ) -> "Kafka":
        """Write the markers of a decided transaction; that of one partition is late or lost."""
        found = self.ids[number]
        is_commit = found.phase is Phase.COMMITTING
        kafka = self.with_id(number, TransactionalId(found.holder))
        for partition in found.partitions:
            records = self.partitions[partition]
            if partition != exception:
                records = _ended(records, number, is_commit=is_commit)
            else:
                late = Status.LATE if is_commit else Status.LATE_ABORT
                records = _changed(records, number, late if status is Status.LATE else status)
            kafka = kafka.with_partition(partition, records)
        return kafka

    def abort_stuck(self, partition: int, numbers: tuple[int, ...]) -> "Kafka":
        """Write a record under each of these ids and abort it: that ends what they have open."""
        records = tuple(
            record
            for record in self.partitions[partition]
            if record.status is not Status.STUCK or record.number not in numbers
        )
        return self.with_partition(partition, records)

    def show(self, partition: int) -> "Kafka":
        """Make the late markers of a partition visible."""
        records = tuple(
            record._replace(status=Status.COMMITTED) if record.status is Status.LATE else record
            for record in self.partitions[partition]
            if record.status is not Status.LATE_ABORT
        )
        return self.with_partition(partition, records)

    def visible(self, partition: int) -> Records:
        """What a reader of committed records sees: all before the last stable offset."""
        records = self.partitions[partition]
        for at, record in enumerate(records):
            if record.status is not Status.COMMITTED:
                return records[:at]
        return records

    def is_stable(self, partition: int) -> bool:
        """Whether the last stable offset is the end."""
        return all(record.status is Status.COMMITTED for record in self.partitions[partition])

    def has(self, partition: int, *statuses: Status) -> bool:
        """Whether a partition has such a record."""
        return any(record.status in statuses for record in self.partitions[partition])


def _ended(records: Records, number: int, *, is_commit: bool) -> Records:
    """What a marker leaves; it also ends what an earlier, lost one has left open."""
    ends = (Status.OPEN, Status.STUCK)
    if is_commit:
        return _changed(records, number, Status.COMMITTED)
    return tuple(r for r in records if r.number != number or r.status not in ends)


def _changed(records: Records, number: int, status: Status) -> Records:
    ends = (Status.OPEN, Status.STUCK)
    return tuple(
        r._replace(status=status) if r.number == number and r.status in ends else r for r in records
    )
