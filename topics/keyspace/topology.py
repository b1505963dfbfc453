"""The topology of a keyspace: one record in a compacted topic, with one writer at a time."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaException, Producer

from event_token import KeyRange, ShardName, tiles
from event_token.errors import Halt, Retry, UsageError
from topics.errors import CorruptRecord, TopologyChanged
from topics.kafka.client import ClientConfig, open_producer
from topics.kafka.deadline import Deadline
from topics.kafka.errors import Fenced, kafka_error, kafka_errors
from topics.kafka.partition_reader import read_tail
from topics.names import check_keyspace, topology_topic, topology_transactional_id

TOPOLOGY_KEY: Final = b"topology"

# The version of the JSON layout; readers refuse later ones. A topology is written in version 2 only
# while it has a decision: a writer that does not know decisions would drop it.
_LAYOUT_VERSION: Final = 1
_LAYOUT_WITH_DECISIONS: Final = 2

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
class Topology:
    """The shards of a keyspace. `epoch` counts the switched reshards.

    `mask_key`: fingerprint of the key of the logs' hmac masks, "" before the first such mask.

    UsageError unless shard names are distinct and the serving ones cover every keyspace id once.
    """

    keyspace: str
    epoch: int
    shards: tuple[ShardEntry, ...]
    vindexes: tuple[TableVindex, ...] = ()
    reshards: tuple[ReshardEntry, ...] = field(default=())
    mask_key: str = ""

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


def update_topology(
    config: ClientConfig,
    keyspace: str,
    change: Callable[[Topology | None], Topology],
) -> Topology:
    """Fence other writers, read, apply `change`, write; return what was written.

    `change` gets the current topology, None for a new keyspace; if it raises, nothing changes.
    TopologyChanged when another writer fenced this one. Then either nothing was written or, if
    this happened during the commit, this change was: read the topology again to find out.
    """
    with TopologyFence(config, keyspace) as fence:
        before = fence.read()
        after = change(before)
        fence.write(before, after)
    return after


class TopologyFence:
    """The right to write the topology: whoever opens it later takes it away.

    What is read while it is held is still current if a later `write` succeeds.
    """

    def __init__(self, config: ClientConfig, keyspace: str) -> None:
        """Fence other writers. TopologyChanged when one has fenced this one meanwhile."""
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
    has_decision = any(reshard.decision for reshard in topology.reshards)
    return json.dumps(
        {
            "version": _LAYOUT_WITH_DECISIONS if has_decision else _LAYOUT_VERSION,
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
                    **_decision_fields(r.decision),
                }
                for r in topology.reshards
            ],
            **({"mask_key": topology.mask_key} if topology.mask_key else {}),
        },
    ).encode()


def _decision_fields(decision: BeginDecision | None) -> dict[str, Any]:
    if decision is None:
        return {}
    return {"decision": {"hop_time_us": decision.hop_time_us, "ends": dict(decision.ends)}}


def topology_from_json(value: bytes | None, keyspace: str, where: str) -> Topology:
    """Decode a topology record; CorruptRecord if it is invalid, Halt on a newer layout."""
    try:
        fields: dict[str, Any] = json.loads(value or b"")
        version = fields["version"]
        if version not in {_LAYOUT_VERSION, _LAYOUT_WITH_DECISIONS}:
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
                _decision(r.get("decision")),
            )
            for r in fields["reshards"]
        ),
        mask_key=str(fields.get("mask_key", "")),
    )


def _decision(fields: dict[str, Any] | None) -> BeginDecision | None:
    if fields is None:
        return None
    ends = {str(source): int(seq) for source, seq in fields["ends"].items()}
    return BeginDecision(int(fields["hop_time_us"]), ends)
