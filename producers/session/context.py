"""What outlives a session and every part of it may use."""

from dataclasses import dataclass, field
from threading import Event

from producers.session.counters import ProducerCounters
from producers.session.status import Report
from producers.settings import ShardProducerSettings
from producers.skip.skip_order import SkipOrder
from topics.names import ShardTopics
from topics.records.schema_ids import SchemaIds


@dataclass(frozen=True, slots=True)
class SessionContext:
    """Made once per process; `server_id` is how replication connections are known to servers.

    `stops_at`: GTIDs of transactions that stopped a session before it had committed those before
    them; until they are passed each transaction is committed by itself.
    `rolled_back`: GTIDs of MariaDB whose rows a session produced before it met their ROLLBACK.
    `failed_copies`: copies that have ended a session, by id, each with the reason; the next session
    marks them as failed.
    `skip_order`: the stops that are passed; the process ends with it.
    `has_streamed`: a session has opened its stream; `has_committed`: one has committed.
    """

    settings: ShardProducerSettings
    topics: ShardTopics
    schema_ids: SchemaIds
    transaction_timeout_ms: int
    server_id: int
    stop: Event
    report: Report
    has_streamed: Event = field(default_factory=Event)
    failed_copies: dict[str, str] = field(default_factory=dict)
    rolled_back: set[str] = field(default_factory=set)
    stops_at: set[str] = field(default_factory=set)
    skip_order: SkipOrder | None = None
    has_committed: Event = field(default_factory=Event)
    counters: ProducerCounters = field(default_factory=ProducerCounters)
