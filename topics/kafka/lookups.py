"""Looks up offsets and records of many topics at once, with one consumer for all of them.

A look-up is a generator: it yields what it asks and is sent the answer. Those of many shards run
together, in rounds: what they ask in a round goes to the brokers in one request for all offsets and
one assignment for all records. So those of a thousand shards wait for brokers about as often as
that of one.
"""

import time
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, TopicMetadata  # type: ignore[attr-defined]  # public

from event_token.errors import Rebuild
from topics.kafka.client import ClientConfig, Deadline, open_admin, retry_request
from topics.kafka.errors import OUT_OF_RANGE, kafka_error, kafka_errors
from topics.kafka.partition_reader import (
    GONE_S,
    TAIL_TIMEOUT_S,
    PartitionReader,
    StoredRecord,
    bounds_of,
    is_last,
    next_message,
    offset_of,
    open_end_consumer,
    partition_bounds,
    stored_record,
    windows_below,
)
from topics.kafka.record_parts import part_of

# Bytes per topic in one fetch, unless a single batch is larger: of most topics little is read, and
# a thousand of them are fetched together.
_FETCH_BYTES: Final = 64 * 1024
# Topics that have been read are taken from the consumer as soon as there are this many of them, or
# it would go on to fetch them.
_UNASSIGN_AT: Final = 32
# How often a topic that brokers do not know is asked for again.
_GONE_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Exists:
    """Whether brokers know the topic: not, if they have said so for `gone_s`."""

    topic: str
    gone_s: float = GONE_S


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first offset and the last stable one."""

    topic: str


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """The offset of the first record, or marker, of that time or later; -1 if there is none."""

    topic: str
    timestamp_ms: int


@dataclass(slots=True, eq=False)
class RecordRange:
    """The next committed record with lower <= offset < upper, None at the end; `upper` is stable.

    Asked again, also after other questions, the same object goes on to the next record: `lower` is
    behind the last one. What retention has removed meanwhile is not there. Parts are joined.
    """

    topic: str
    lower: int
    upper: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing, for some seconds, and until the other look-ups have ended or pause too."""

    seconds: float


Question = Exists | Bounds | OffsetAt | RecordRange | Pause
T = TypeVar("T")
# Yields questions and is sent their answers.
Lookup = Generator[Question, Any, T]


def bounds(topic: str) -> Lookup[tuple[int, int]]:
    """Return the first offset and the last stable one."""
    found: tuple[int, int] = yield Bounds(topic)
    return found


def next_of(records: RecordRange) -> Lookup[StoredRecord | None]:
    """Return the next of these records, None at the end."""
    found: StoredRecord | None = yield records
    return found


def first_between(topic: str, lower: int, upper: int) -> Lookup[StoredRecord | None]:
    """Return the first committed record with lower <= offset < upper; `upper` must be stable."""
    return (yield from next_of(RecordRange(topic, lower, upper)))


def last_between(topic: str, lower: int, upper: int) -> Lookup[StoredRecord | None]:
    """Return the last committed record with lower <= offset < upper; `upper` must be stable."""
    for begin, end in windows_below(lower, upper):
        records, last = RecordRange(topic, begin, end), None
        while (record := (yield from next_of(records))) is not None:
            last = record
        if last is not None:
            return last
    return None


class _OpenLookup(Generic[T]):
    """A look-up with the question that it waits for; None once it has its result."""

    def __init__(self, lookup: Lookup[T]) -> None:
        self.lookup = lookup
        self.question: Question | None = None
        self.result: T
        self.answer(None)

    def answer(self, answer: object) -> None:
        try:
            self.question = self.lookup.send(answer)
        except StopIteration as done:
            self.question, self.result = None, done.value


K = TypeVar("K")
Asked = TypeVar("Asked", Exists, Bounds, OffsetAt, RecordRange)


class Lookups:
    """Answers look-ups, of partition 0 of each topic. A context manager, not thread-safe.

    No connection is made before the first question. UsageError when a topic does not exist, Retry
    when brokers do not answer in time, and what the look-ups raise: then none has a result.
    """

    def __init__(self, config: ClientConfig) -> None:
        """Connect to nothing."""
        self._config = config
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def result(self, lookup: Lookup[T]) -> T:
        """Return the result of one look-up."""
        return self.results({"": lookup})[""]

    def results(self, lookups: Mapping[K, Lookup[T]]) -> dict[K, T]:
        """Return the result of each look-up."""
        try:
            turns = {key: _OpenLookup(lookup) for key, lookup in lookups.items()}
            while waiting := [turn for turn in turns.values() if turn.question is not None]:
                self._round(waiting)
        finally:
            for lookup in lookups.values():
                lookup.close()
        return {key: turn.result for key, turn in turns.items()}

    def _round(self, waiting: list[_OpenLookup[T]]) -> None:
        """Answer a question of each look-up that does not pause."""
        self._answer_exists(_asked(waiting, Exists))
        self._answer_bounds(_asked(waiting, Bounds))
        self._answer_offsets(_asked(waiting, OffsetAt))
        self._answer_records(_asked(waiting, RecordRange))
        pauses = [turn.question for turn in waiting if turn.question is not None]
        seconds = [pause.seconds for pause in pauses if isinstance(pause, Pause)]
        if seconds and len(seconds) == len(pauses):
            time.sleep(max(seconds))
            for turn in waiting:
                if turn.question is not None:
                    turn.answer(None)

    def _answer_exists(self, asked: "dict[str, tuple[_OpenLookup[T], Exists]]") -> None:
        known = self._described(None) if len(asked) > 1 else {}
        lacking = [topic for topic in asked if topic not in known and self._is_lacking(topic)]
        deadline = Deadline(max((each.gone_s for _, each in asked.values()), default=0.0))
        while lacking and not deadline.passed:
            time.sleep(min(_GONE_POLL_S, deadline.left_s))
            lacking = [topic for topic in lacking if self._is_lacking(topic)]
        for topic, (turn, _) in asked.items():
            turn.answer(topic not in lacking)

    def _is_lacking(self, topic: str) -> bool:
        """Return whether brokers say that the topic is not there, rather than not to be seen."""
        error = self._described(topic)[topic].error
        return error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART

    def _described(self, topic: str | None) -> Mapping[str, TopicMetadata]:
        """Return what brokers say of a topic; None: of all that there are."""
        consumer = self._open()

        def request(timeout_s: float) -> Mapping[str, TopicMetadata]:
            if topic is None:
                found = consumer.list_topics(timeout=timeout_s)
            else:
                found = consumer.list_topics(topic, timeout=timeout_s)
            topics: Mapping[str, TopicMetadata] = found.topics
            return topics

        return retry_request(f"looking for {topic or 'topics'}", self._config, request)

    def _answer_bounds(self, asked: "dict[str, tuple[_OpenLookup[T], Bounds]]") -> None:
        found: dict[str, tuple[int, int]] = {}
        if len(asked) > 1:
            # Without a leader of any of them the client has no request to send: they are gone, or
            # a broker has just started. Asked for one by one, they are waited for or named.
            with suppress(Rebuild):
                found = bounds_of(self._open_admin(), self._config, list(asked))
        for topic, (turn, _) in asked.items():
            # Raises if the topic is gone, after some seconds.
            known = found.get(topic) or partition_bounds(self._open(), self._config, topic)
            turn.answer(known)

    def _answer_offsets(self, asked: "dict[str, tuple[_OpenLookup[T], OffsetAt]]") -> None:
        if not asked:
            return
        consumer = self._open()

        def request(timeout_s: float) -> list[TopicPartition]:
            wanted = [TopicPartition(topic, 0, at.timestamp_ms) for topic, (_, at) in asked.items()]
            found = consumer.offsets_for_times(wanted, timeout=timeout_s)
            for each in found:
                if each.error is not None:
                    with kafka_errors(f"{doing}, at {each.topic}", self._config.brokers):
                        raise KafkaException(each.error)
            return found

        doing = f"looking up an offset of {_names(asked)} by time"
        for each in retry_request(doing, self._config, request):
            turn, _ = asked[each.topic]
            turn.answer(each.offset)

    def _answer_records(self, asked: "dict[str, tuple[_OpenLookup[T], RecordRange]]") -> None:
        """Read all topics up to what their look-ups want: one record, or more."""
        left = {topic: at for topic, at in asked.items() if at[1].lower < at[1].upper}
        for turn, _ in (at for topic, at in asked.items() if topic not in left):
            turn.answer(None)
        if not left:
            return
        in_parts: list[tuple[_OpenLookup[T], RecordRange]] = []
        doing = f"reading {_names(left)}"
        consumer, config, brokers = self._open(), self._config, self._config.brokers
        done: list[str] = []
        try:
            with kafka_errors(doing, brokers):
                consumer.assign([TopicPartition(t, 0, at.lower) for t, (_, at) in left.items()])
            deadline = Deadline(TAIL_TIMEOUT_S)
            while left:
                message = next_message(consumer, config, deadline, doing, OUT_OF_RANGE)
                topic = str(message.topic())
                if topic not in left:
                    continue
                turn, records = left[topic]
                error = message.error()
                if error is not None and error.name() in OUT_OF_RANGE:
                    self._pass_retention(records, error)
                    if records.lower < records.upper:
                        with kafka_errors(doing, brokers):
                            consumer.incremental_unassign([TopicPartition(topic, 0)])
                            consumer.incremental_assign([TopicPartition(topic, 0, records.lower)])
                        continue
                    turn.answer(None)
                elif _is_part(message):
                    in_parts.append((turn, records))
                elif _answered(turn, records, message):
                    continue
                del left[topic]
                done.append(topic)
                deadline = Deadline(TAIL_TIMEOUT_S)
                if len(done) == _UNASSIGN_AT:
                    with kafka_errors(doing, brokers):
                        consumer.incremental_unassign([TopicPartition(t, 0) for t in done])
                    done.clear()
        finally:
            consumer.unassign()
        for turn, records in in_parts:
            self._join(turn, records)

    def _pass_retention(self, records: RecordRange, error: KafkaError) -> None:
        """Go on with the first record that is still there; raise if that is not further on."""
        topic, lower = records.topic, records.lower
        start, _ = partition_bounds(self._open(), self._config, topic)
        if start <= lower:
            raise kafka_error(error, f"reading {topic} from offset {lower}", self._config.brokers)
        records.lower = start

    def _join(self, turn: _OpenLookup[T], records: RecordRange) -> None:
        """Answer with records of which some are in parts: they may be large, so one by one."""
        topic, consumer = records.topic, self._open()
        with PartitionReader(self._config, topic, 0, TAIL_TIMEOUT_S, consumer) as reader:
            for record in reader.records(records.lower, records.upper):
                records.lower = record.offset + 1
                turn.answer(record)
                if turn.question is not records:
                    return
        turn.answer(None)

    def _open(self) -> Consumer:
        if self._consumer is None:
            self._consumer = open_end_consumer(self._config, fetch_bytes=_FETCH_BYTES)
        return self._consumer

    def _open_admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = open_admin(self._config)
        return self._admin


def _asked(
    waiting: list[_OpenLookup[T]], kind: type[Asked]
) -> "dict[str, tuple[_OpenLookup[T], Asked]]":
    """Return the questions of a kind by topic; of several about a topic, one."""
    found: dict[str, tuple[_OpenLookup[T], Asked]] = {}
    for turn in waiting:
        question = turn.question
        if isinstance(question, kind):
            found.setdefault(question.topic, (turn, question))
    return found


def _answered(turn: _OpenLookup[T], records: RecordRange, message: Message) -> bool:
    """Give the look-up what a message means to it; return whether it wants more of the topic."""
    if message.error() is None and offset_of(message) < records.upper:
        records.lower = offset_of(message) + 1
        turn.answer(stored_record(message))
        if turn.question is not records:
            return False
    if is_last(message, records.upper):
        turn.answer(None)
        return False
    return True


def _is_part(message: Message) -> bool:
    if message.error() is not None:
        return False
    headers = message.headers()
    where = f"{message.topic()}, offset {message.offset()}"
    return bool(headers) and part_of(headers, where) is not None


def _names(asked: Mapping[str, object]) -> str:
    """Return the topics for messages: the only one, or how many there are."""
    return next(iter(asked)) if len(asked) == 1 else f"{len(asked)} topics"
