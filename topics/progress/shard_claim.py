"""Who has claimed a shard last, so that a process can tell a newer one from an older one.

The transactional id says only that another process has fenced this one. Each process therefore
writes a claim to the copy topic before it fences for the first time: the last claim is that of the
newest process. Claims are no part of any transaction, so nobody has to hold the shard for one.
"""

import time
import uuid
from collections.abc import Iterator
from typing import Final, NoReturn

from confluent_kafka import Producer

from topics.kafka.client import ClientConfig, open_consumer, open_producer, write_record
from topics.kafka.errors import Fenced
from topics.kafka.partition_reader import PartitionReader
from topics.keyspace.audit import operator
from topics.names import ShardTopics
from topics.progress.copy_topic import CLAIM_KEY, Claim, decode, encode

# A look at a few records takes milliseconds; whoever fences asks again, and notices a stop between.
LOOK_S_MAX: Final = 5.0


class ShardClaim:
    """The claim of one process to a shard."""

    def __init__(self, config: ClientConfig, topics: ShardTopics) -> None:
        """Nothing is claimed yet."""
        self._config = config.answering_within(LOOK_S_MAX)
        self._topics = topics
        self._process = uuid.uuid4().hex
        self._offset = -1
        # Until it has an id from the brokers takes half a second, in which servers are checked.
        self._writer: Producer | None = open_producer(config)

    @property
    def is_made(self) -> bool:
        """Whether the process has claimed the shard."""
        return self._offset >= 0

    def make(self) -> None:
        """Claim the shard: from here on every other process is an older one. Retry as a write."""
        claim = Claim(self._process, operator(), time.time_ns() // 1000)
        topic, value = self._topics.copy, encode(claim)
        writer, self._writer = self._writer, None  # a second claim is rare
        self._offset = write_record(self._config, topic, CLAIM_KEY, value, writer)

    def newer(self) -> Claim | None:
        """Return the last claim if it is another process's, None if it is this one's.

        Fenced if this one's is not in the topic any more; TopicMissing; Retry when no broker
        answers.
        """
        claims = list(self._claims())
        if not claims:
            self.raise_emptied()
        last = claims[-1]
        return None if last.process == self._process else last

    def check(self) -> None:
        """Raise Fenced if another process has claimed the shard since; otherwise as `newer`."""
        newer = self.newer()
        if newer is not None:
            raise claimed_by(self._topics, newer)

    def raise_emptied(self) -> NoReturn:
        """Raise the error of a process whose log was started over."""
        raise Fenced(
            f"{self._topics.copy} was emptied since this process claimed the shard: the log was "
            "started over. Another process took over; this one must exit"
        )

    def _claims(self) -> Iterator[Claim]:
        """The claims since this process's, that included."""
        topic = self._topics.copy
        # What a transaction has open must not hide a claim behind it.
        everything = open_consumer(self._config, read_committed=False)
        try:
            with PartitionReader(self._config, topic, 0, LOOK_S_MAX, everything) as reader:
                start, end = reader.bounds()
                for record in reader.messages(max(start, self._offset), end):
                    if record.key == CLAIM_KEY and record.value is not None:
                        where = f"{topic}, offset {record.offset}"
                        claim = decode(record.key, record.value, where)
                        assert isinstance(claim, Claim)  # noqa: S101 - by its key
                        yield claim
        finally:
            everything.close()


def claimed_by(topics: ShardTopics, claim: Claim) -> Fenced:
    """Return the error of a process that gives way to a newer one."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(claim.at_us // 1_000_000))
    return Fenced(
        f"{topics.log}: {claim.by} claimed this shard at {at} UTC. Another process took over; this "
        "one must exit"
    )
