"""An operator's order to pass what stops a shard, carried out by a producer's own sessions.

Only a decoder with the producer's settings can tell what stops: no list of GTIDs passes a
transaction that can be logged. The order is kept by the process alone. Each SKIP record is
committed with the position behind it, so after a kill the same order goes on where it was.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from event_token import Flavor, GtidSet, MariadbGtidSet, parse_gtid_set
from event_token.errors import UsageError
from event_token.gtid_set import NamedGtids
from producers.decoder import Decoder
from producers.decoder.errors import (
    CorruptBinlog,
    DecoderHalt,
    HiddenType,
    RuleBroken,
    WriteAfterEnd,
)
from producers.servers.server_list import OpenServer, ServerList
from producers.settings import ShardProducerSettings
from producers.skip.one_transaction import check_ahead, choose_server, parse_gtid
from producers.skip.record_writer import SkipReport, check_reason, empty_log
from producers.start.last_transaction import read_domain_tail
from topics.progress.committed_tail import last_progress
from topics.progress.record import LastTransaction
from topics.schemas import open_schema_ids
from topics.stream.subscriber import checked_tables

# Rows after the END of a reshard have their own way out.
_NEVER: Final = (WriteAfterEnd,)
# Broken bytes may arrive whole the next time, and settings help against the others: they are passed
# by their GTID alone.
_BY_GTID: Final = (CorruptBinlog, RuleBroken, HiddenType)
# Transactions behind a stop that are committed one by one. Stops come in a row, and one that comes
# behind others in a batch costs another session.
CAREFUL_TRANSACTIONS: Final = 100


@dataclass(slots=True)
class SkipOrder:
    """Which stops are passed, and up to where.

    `until`: the order ends once the stream has been read up to all of these. `gtids`: only these,
    None: any. `tables`: only stops that come of these (database, table) alone, None: any.
    """

    until: GtidSet
    reason: str
    on_skip: Callable[[SkipReport], None]
    gtids: NamedGtids | None = None
    tables: frozenset[tuple[str, str]] | None = None
    passed: list[SkipReport] = field(default_factory=list)
    has_ended: bool = False
    _since: int = 0

    @property
    def is_careful(self) -> bool:
        """Whether each transaction is committed by itself, because another stop may be near."""
        return self._since < CAREFUL_TRANSACTIONS

    def committed(self, transactions: int) -> None:
        """Count what was committed since the last stop."""
        self._since += transactions

    def covers(self, gtid: str, error: DecoderHalt) -> bool:
        """Whether the transaction, which stops the shard by `error`, is to be passed."""
        if isinstance(error, _NEVER):
            return False
        if self.gtids is not None:
            return self.gtids.includes(gtid)
        if isinstance(error, _BY_GTID):
            return False
        return self.tables is None or (bool(error.tables) and self.tables >= set(error.tables))

    def add(self, report: SkipReport) -> None:
        """Note a SKIP record that was written."""
        self._since = 0
        self.passed.append(report)
        self.on_skip(report)

    def check_end(self, decoder: Decoder) -> bool:
        """Whether the stream has been read up to the order's end."""
        self.has_ended = self.has_ended or decoder.is_past(self.until)
        return self.has_ended


# Each gets a record of its own, and is named in messages. `--until` has no such limit.
GTIDS_MAX: Final = 10_000


def parse_named(texts: Collection[str], flavor: Flavor) -> list[str]:
    """Return each GTID of --gtid. UsageError on those of the other family, and on too many."""
    named = NamedGtids.parse(texts)
    is_mysql = flavor is Flavor.MYSQL
    if named.mariadb if is_mysql else not named.mysql.is_empty:
        form = "uuid:5 or uuid:5-9 of MySQL" if is_mysql else "0-1-5 or 0-1-5,0-1-6 of MariaDB"
        raise UsageError(f"--gtid {' '.join(texts)}: the shard's GTIDs have the form {form}")
    found = list(islice(named.each(), GTIDS_MAX + 1))
    if len(found) > GTIDS_MAX:
        raise UsageError(f"--gtid names more than {GTIDS_MAX} transactions: use --until")
    return found


def given_order(
    settings: ShardProducerSettings,
    gtids: Collection[str],
    until: str,
    tables: Collection[str],
    reason: str,
    on_skip: Callable[[SkipReport], None],
) -> SkipOrder | None:
    """Return the order to pass the transactions `gtids`, or all stops up to `until`.

    `until`: "" for all that the server has executed by now. `tables`: only stops because of these,
    as database.table.
    None where `gtids` are numbers of MariaDB that ran backwards, which no session meets:
    `skip_transaction` passes them. UsageError on transactions that the log is past, or that the
    server has not executed.
    """
    check_reason(reason)
    topics = settings.shard_topics
    schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
    last = last_progress(settings.kafka, topics, schema_ids)
    if last is None:
        raise empty_log(topics)
    position = parse_gtid_set(last.position, settings.flavor)
    with closing(ServerList.open(settings)) as servers:
        server = choose_server(servers, position, last.lasts, gtids)
        ends = [parse_gtid(text, settings.flavor) for text in gtids]
        if _ran_backwards(server, position, gtids, last.lasts):
            return None
        if until:
            ends = [parse_gtid(until, settings.flavor)]
        for end in ends:
            check_ahead(server, position, end)
        if not ends:
            ends = [server.history().executed]
    return SkipOrder(
        until=_all_of(ends),
        reason=reason,
        on_skip=on_skip,
        gtids=NamedGtids.parse(gtids) if gtids else None,
        tables=checked_tables(tables or None),
    )


def _ran_backwards(
    server: OpenServer,
    position: GtidSet,
    gtids: Collection[str],
    lasts: Sequence[LastTransaction],
) -> bool:
    """Whether a GTID is one of those that a position of MariaDB cannot tell from earlier ones."""
    if not isinstance(position, MariadbGtidSet):
        return False
    domains = {int(gtid.partition("-")[0]) for gtid in gtids}
    behind = [read_domain_tail(server, position, domain, lasts) for domain in sorted(domains)]
    return any(found.passed and set(gtids) & set(found.gtids) for found in behind)


def _all_of(ends: list[GtidSet]) -> GtidSet:
    whole = ends[0]
    for end in ends[1:]:
        whole = whole.union(end)
    return whole
