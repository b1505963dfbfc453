"""The topology of a keyspace: one record in a compacted topic, with one writer at a time.

Applications that route by it follow it with `watch_topology`.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from threading import Event
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaException, Producer

from event_token import KeyRange, ShardName, tiles
from event_token.errors import Halt, Retry, UsageError
from topics.errors import CorruptRecord, TopologyChanged
from topics.kafka.client import ClientConfig, Deadline, open_producer
from topics.kafka.errors import Fenced, kafka_error, kafka_errors
from topics.kafka.partition_reader import read_tail
from topics.keyspace.audit import operator
from topics.names import check_keyspace, topology_topic, topology_transactional_id

TOPOLOGY_KEY: Final = b"topology"

# The version of the JSON layout; readers refuse any other.
_LAYOUT_VERSION: Final = 1

# One small record; longer than a failover of the transaction coordinator takes.
_WRITE_TIMEOUT_S: Final = 60.0
_TRANSACTION_TIMEOUT_MS: Final = 60_000

_READ_BACK_PAUSE_S: Final = 0.02


class ShardState(StrEnum):
    """The role of a shard for readers and writers."""

    SERVING = "SERVING"  # takes writes; the serving shards cover the keyspace once
    TARGET = "TARGET"  # of a reshard in progress: not to be read yet
    RETIRED = "RETIRED"  # a source after its reshard: its log is history


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard and its state; the name contains its key range."""

    name: str
    state: ShardState = ShardState.SERVING

    @property
    def key_range(self) -> KeyRange:
        """The keyspace ids of the shard."""
        return ShardName.parse(self.name).key_range


@dataclass(frozen=True, slots=True)
class TableVindex:
    """How the rows of a table get their keyspace id: a Vitess vindex over columns."""

    database: str
    table: str
    columns: tuple[str, ...]
    vindex: str


class ReshardState(StrEnum):
    """The state of a reshard, the values of `ReshardEntry.state`."""

    RUNNING = "RUNNING"  # the targets are being filled
    SWITCHED = "SWITCHED"  # the targets serve
    CANCELLED = "CANCELLED"
    COMPLETED = "COMPLETED"  # switched, and its leftovers on the servers removed
    DECLARED = "DECLARED"  # done by other tools, without marks; its hop time was declared


# The states of a reshard that is not over.
UNDER_WAY: Final = frozenset((ReshardState.RUNNING.value, ReshardState.SWITCHED.value))


@dataclass(frozen=True, slots=True)
class BeginDecision:
    """The decision that the targets begin: BEGIN's hop time, and the seq of END by source."""

    hop_time_us: int
    ends: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ReshardEntry:
    """A reshard, past or in progress; a start in the past finds the shards of that time by it.

    `state`: a value of ReshardState. `decision` is None until a switch has decided; that a reshard
    is cancelled is said by its state alone. `hop_time_us` is set when it is switched.
    """

    reshard_id: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    state: str
    hop_time_us: int | None = None
    decision: BeginDecision | None = None


@dataclass(frozen=True, slots=True)
class TopologyAuthor:
    """Who wrote a topology, as `user@host`, when by the clock of that host, and why."""

    by: str
    at_us: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Topology:
    """The shards of a keyspace. `epoch` counts the switched reshards.

    `mask_keys`: fingerprints of the keys of the logs' hmac masks, by their ids ("" for none).
    `author` is set where a topology is written; topologies that differ in nothing else are equal.

    UsageError unless shard names are distinct and the serving ones cover every keyspace id once.
    """

    keyspace: str
    epoch: int
    shards: tuple[ShardEntry, ...]
    vindexes: tuple[TableVindex, ...] = ()
    reshards: tuple[ReshardEntry, ...] = field(default=())
    mask_keys: Mapping[str, str] = field(default_factory=dict)
    author: TopologyAuthor | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_keyspace(self.keyspace)
        names = [shard.name for shard in self.shards]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise UsageError(
                f"keyspace {self.keyspace}: shard names are never reused, "
                f"but {', '.join(repeated)} is named again",
            )
        if self.epoch < 0:
            raise UsageError(f"keyspace {self.keyspace}: epoch {self.epoch} is negative")
        serving = self.serving()
        if not tiles([shard.key_range for shard in serving], KeyRange.parse("-")):
            raise UsageError(
                f"keyspace {self.keyspace}: the serving shards "
                f"{', '.join(s.name for s in serving) or '(none)'} do not cover every keyspace id "
                f"once",
            )

    @property
    def sharded_databases(self) -> frozenset[str]:
        """The databases of which a table has a vindex."""
        return frozenset(vindex.database for vindex in self.vindexes)

    def serving(self) -> tuple[ShardEntry, ...]:
        """Return the shards that take writes."""
        return tuple(shard for shard in self.shards if shard.state is ShardState.SERVING)

    def shards_for(self, key_range: KeyRange) -> tuple[str, ...]:
        """Return the serving shards that a reader of the range needs, in key range order.

        Together they cover the range.
        """
        overlapping = [s for s in self.serving() if s.key_range.overlaps(key_range)]
        return tuple(s.name for s in sorted(overlapping, key=lambda s: s.key_range.start))


def read_topology(
    config: ClientConfig, keyspace: str, consumer: Consumer | None = None
) -> Topology | None:
    """Return the committed topology of a keyspace, None when none was written.

    `consumer`: to read with, which stays open. UsageError when the topic does not exist: the
    keyspace is not provisioned.
    """
    topic = topology_topic(keyspace)
    record = read_tail(config, topic, consumer=consumer).last
    if record is None:
        return None
    where = f"{topic}, offset {record.offset}"
    if record.key != TOPOLOGY_KEY:
        raise CorruptRecord(f"{where}: the key is {record.key!r}, not {TOPOLOGY_KEY!r}")
    return topology_from_json(record.value, keyspace, where)


def require_topology(topology: Topology | None, keyspace: str) -> Topology:
    """Return the topology that was read; UsageError if the keyspace has none."""
    if topology is None:
        raise UsageError(f"keyspace {keyspace} has no topology: start a producer of it first")
    return topology


def update_topology(
    config: ClientConfig,
    keyspace: str,
    change: Callable[[Topology | None], Topology],
    reason: str = "",
) -> Topology:
    """Fence other writers, read, apply `change`, write; return what was written.

    `change` gets the current topology, None for a new keyspace; if it raises, nothing changes.
    TopologyChanged when another writer fenced this one. Then either nothing was written or, if
    this happened during the commit, this change was: read the topology again to find out.
    """
    with TopologyFence(config, keyspace, reason) as fence:
        before = fence.read()
        after = change(before)
        fence.write(before, after)
    return after


class TopologyFence:
    """The right to write the topology: whoever opens it later takes it away.

    What is read while it is held is still current if a later `write` succeeds.
    """

    def __init__(self, config: ClientConfig, keyspace: str, reason: str = "") -> None:
        """Fence other writers. TopologyChanged when one has fenced this one meanwhile.

        `reason`: why the topology is to change, which its record keeps.
        """
        self._reason = reason
        self._config = config
        self._keyspace = keyspace
        self._doing = f"writing the topology of keyspace {keyspace}"
        self._producer = open_producer(
            config,
            transactional_id=topology_transactional_id(keyspace),
            transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
        )
        try:
            with kafka_errors(self._doing, config.brokers):
                self._producer.init_transactions(_WRITE_TIMEOUT_S)
        except Fenced as error:
            raise _changed(self._doing) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Send nothing more."""
        del self._producer

    def read(self) -> Topology | None:
        """Return the committed topology, None for a new keyspace."""
        return read_topology(self._config, self._keyspace)

    def write(self, before: Topology | None, after: Topology) -> None:
        """Write `after` in the place of `before`, unless they are equal.

        TopologyChanged when another writer fenced this one, or the outcome of the commit is
        unknown. Then, and after a Rebuild, `after` may have been written: fence, read and decide.
        """
        keyspace, brokers = self._keyspace, self._config.brokers
        if after.keyspace != keyspace or (before is not None and after.epoch < before.epoch):
            raise UsageError(
                f"{self._doing}: keyspace {after.keyspace} epoch {after.epoch} cannot follow "
                f"{before and before.epoch}",
            )
        if after == before:
            return
        author = TopologyAuthor(operator(), time.time_ns() // 1_000, self._reason)
        after = replace(after, author=author)
        try:
            _commit(self._producer, topology_topic(keyspace), topology_to_json(after))
        except KafkaException as error:
            known = kafka_error(error, self._doing, brokers)
            if isinstance(known, Fenced):
                raise _changed(self._doing) from error
            if isinstance(known, Retry):
                # Brokers also answer so while another writer is being let in.
                raise TopologyChanged(
                    f"{known}. It is unknown whether it was written: read the topology again, and "
                    f"decide again",
                ) from error
            raise known from error
        _await_visible(self._config, keyspace, before, after)


def _changed(doing: str) -> TopologyChanged:
    return TopologyChanged(
        f"{doing}: another writer took over: read the topology again, and decide again",
    )


def _commit(producer: Producer, topic: str, value: bytes) -> None:
    producer.begin_transaction()
    producer.produce(topic, value, TOPOLOGY_KEY, 0)
    producer.commit_transaction(_WRITE_TIMEOUT_S)


def _await_visible(
    config: ClientConfig,
    keyspace: str,
    before: Topology | None,
    after: Topology,
) -> None:
    """Wait until readers see the change, because a commit returns before its marker is written."""
    deadline = Deadline(_WRITE_TIMEOUT_S)
    while read_topology(config, keyspace) == before:
        if deadline.passed:
            raise Retry(
                f"the topology of {keyspace}, epoch {after.epoch}, is committed but not "
                f"readable after {_WRITE_TIMEOUT_S:g} s (brokers {config.brokers})",
            )
        time.sleep(_READ_BACK_PAUSE_S)


def topology_to_json(topology: Topology) -> bytes:
    """Return the value of the topology record."""
    return json.dumps(
        {
            "version": _LAYOUT_VERSION,
            "keyspace": topology.keyspace,
            "epoch": topology.epoch,
            "shards": [{"name": s.name, "state": s.state.value} for s in topology.shards],
            "vindexes": [
                {
                    "database": v.database,
                    "table": v.table,
                    "columns": list(v.columns),
                    "vindex": v.vindex,
                }
                for v in topology.vindexes
            ],
            "reshards": [
                {
                    "id": r.reshard_id,
                    "sources": list(r.sources),
                    "targets": list(r.targets),
                    "state": r.state,
                    "hop_time_us": r.hop_time_us,
                    "decision": r.decision
                    and {"hop_time_us": r.decision.hop_time_us, "ends": dict(r.decision.ends)},
                }
                for r in topology.reshards
            ],
            "mask_key": topology.mask_keys.get("", ""),
            "mask_keys": {name: key for name, key in topology.mask_keys.items() if name},
            "author": topology.author and asdict(topology.author),
        },
    ).encode()


def topology_from_json(value: bytes | None, keyspace: str, where: str) -> Topology:
    """Decode a topology record; CorruptRecord if it is invalid, Halt on another layout."""
    try:
        fields: dict[str, Any] = json.loads(value or b"")
        version = fields["version"]
        if version != _LAYOUT_VERSION:
            raise Halt(
                f"{where}: layout {version} of the topology is not known: use the release that "
                f"wrote it",
            )
        topology = _topology(fields)
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise CorruptRecord(f"{where}: not a topology: {error!r}") from error
    if topology.keyspace != keyspace:
        raise CorruptRecord(f"{where}: it is the topology of keyspace {topology.keyspace!r}")
    return topology


def _topology(fields: dict[str, Any]) -> Topology:
    return Topology(
        keyspace=fields["keyspace"],
        epoch=int(fields["epoch"]),
        shards=tuple(ShardEntry(s["name"], ShardState(s["state"])) for s in fields["shards"]),
        vindexes=tuple(
            TableVindex(v["database"], v["table"], tuple(v["columns"]), v["vindex"])
            for v in fields["vindexes"]
        ),
        reshards=tuple(
            ReshardEntry(
                r["id"],
                tuple(r["sources"]),
                tuple(r["targets"]),
                r["state"],
                r["hop_time_us"],
                _decision(r["decision"]),
            )
            for r in fields["reshards"]
        ),
        mask_keys=_mask_keys(fields),
        author=_author(fields.get("author")),
    )


def _mask_keys(fields: dict[str, Any]) -> dict[str, str]:
    without_id = {"": str(fields["mask_key"])} if fields["mask_key"] else {}
    return without_id | {str(name): str(key) for name, key in fields.get("mask_keys", {}).items()}


def _author(fields: dict[str, Any] | None) -> TopologyAuthor | None:
    if fields is None:
        return None
    return TopologyAuthor(str(fields["by"]), int(fields["at_us"]), str(fields["reason"]))


def _decision(fields: dict[str, Any] | None) -> BeginDecision | None:
    if fields is None:
        return None
    ends = {str(source): int(seq) for source, seq in fields["ends"].items()}
    return BeginDecision(int(fields["hop_time_us"]), ends)


# A switch stops writes for about a second; to ask more often would gain nothing.
WATCH_INTERVAL_S: Final = 1.0


def watch_topology(
    config: ClientConfig,
    keyspace: str,
    *,
    interval_s: float = WATCH_INTERVAL_S,
    stop: Event | None = None,
) -> Iterator[Topology]:
    """Yield the topology of a keyspace as it is now, then each later one.

    Blocks between them, and ends when `stop` is set; without it the caller leaves the loop. Of
    several changes within `interval_s` only the last one is certain to be seen. Waits while the
    brokers are away, once the first topology was read. UsageError when no producer of the
    keyspace has run yet.
    """
    stopped = stop or Event()
    last: Topology | None = None
    while not stopped.is_set():
        try:
            found = read_topology(config, keyspace)
        except Retry:
            if last is None:
                raise
            found = last
        if found is not None and found != last:
            last = found
            yield found
        stopped.wait(interval_s)


class TopologyLook:
    """Reads the topology of a keyspace at most every `every_s`, each time in a thread of its own.

    A look takes tens of milliseconds, and half a second now and then: its client is a new one. A
    thread ends with its look, so there is nothing to close. Not thread-safe.
    """

    def __init__(self, config: ClientConfig, keyspace: str, every_s: float) -> None:
        """Begin nothing yet."""
        self._config = config
        self._keyspace = keyspace
        self._every_s = every_s
        self._due_s = time.monotonic() + every_s
        self._looking: threading.Thread | None = None
        self._found: Topology | None = None
        self._failure: BaseException | None = None

    def take(self) -> Topology | None:
        """Return what a look has found, once, and begin the next one when it is due.

        None when nothing is new, or nothing was written. Raises once what a look has raised.
        """
        if self._looking is None:
            self._begin_if_due()
            return None
        if self._looking.is_alive():
            return None
        self._looking = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self._found

    def _begin_if_due(self) -> None:
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + self._every_s
        name = f"topology of {self._keyspace}"
        self._looking = threading.Thread(target=self._look, name=name, daemon=True)
        self._looking.start()

    def _look(self) -> None:
        try:
            self._found = read_topology(self._config, self._keyspace)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that takes
            self._failure = error
