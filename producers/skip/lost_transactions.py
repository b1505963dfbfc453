"""`skip --lost`: go on with a primary that lost transactions which the log holds."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from databases.server_facts import binlog_files
from event_token import GtidSet, MariadbGtidSet, MysqlGtidSet, parse_gtid_set
from event_token.errors import Halt, UsageError
from event_token.mariadb_gtid import parse_mariadb_gtid
from producers.replication.gtid_scan import transactions
from producers.replication.stream import ReplicationStream, server_errors
from producers.servers.choice import (
    ServerView,
    find_faults,
    is_known,
    is_purged,
    lacking,
    remembered,
)
from producers.servers.server_list import OpenServer, ServerList
from producers.settings import ShardProducerSettings
from producers.skip.record_writer import SkipDecision, SkipReport, write_skip
from producers.start.last_transaction import check_behind
from topics.kafka.partition_reader import TAIL_TIMEOUT_S, PartitionReader
from topics.progress.codec import decode_progress
from topics.progress.record import LastTransaction
from topics.records.event_decoder import EventDecoder
from topics.records.skip_record import Skip, SkipKind
from topics.records.table_shape import SchemaIds
from topics.records.vevent import EventType, VEvent
from topics.schemas import open_schema_ids


def parts_of(position: GtidSet, wanted: GtidSet) -> list[GtidSet]:
    """The domains (MySQL: intervals) of a position in which something of another set is."""
    if isinstance(position, MysqlGtidSet):
        parts = [
            MysqlGtidSet.of({tsid: [interval]})
            for tsid, intervals in position.servers
            for interval in intervals
        ]
        return [part for part in parts if not part.intersection(wanted).is_empty]
    assert isinstance(wanted, MariadbGtidSet)  # noqa: S101 - one family per shard
    domains = wanted.by_domain()
    return [MariadbGtidSet((each,)) for each in position.branches if each[0] in domains]


def is_in(part: GtidSet, gtid: str) -> bool:
    """Whether a GTID of a log is in one of these parts: of MariaDB, whether it is of the domain."""
    if isinstance(part, MysqlGtidSet):
        return part.contains_gtid(gtid)
    return parse_mariadb_gtid(gtid)[0] in part.by_domain()


class ServerCommits:
    """The transactions of one server. Its binlogs are read as far back as they are asked for."""

    def __init__(self, server: OpenServer, view: ServerView) -> None:
        """`view`: what the server has just reported."""
        self.view = view
        self._server = server
        self._commits_us: dict[str, int] = {}
        self._unread: list[str] | None = None

    def has_some_of(self, part: GtidSet) -> bool:
        """Whether it has executed anything of a domain (MySQL: of an interval)."""
        there = self.view.history.executed.union(self.view.history.purged)
        if isinstance(part, MysqlGtidSet):
            return not part.intersection(there).is_empty
        assert isinstance(there, MariadbGtidSet)  # noqa: S101 - one family per shard
        return not part.by_domain().keys().isdisjoint(there.by_domain())

    def has_executed(self, gtid: str) -> bool:
        """Whether the server has a transaction of this GTID."""
        executed = self.view.history.executed
        if isinstance(executed, MysqlGtidSet):
            return executed.contains_gtid(gtid)
        domain, server, number = parse_mariadb_gtid(gtid)
        if not is_known(self.view, domain, server, number):
            return False
        if is_purged(self.view, domain, number) or executed.contains_gtid(gtid):
            return True
        return self.commit_us(gtid) is not None

    def differs(self, gtid: str, commit_us: int) -> bool:
        """Whether the server has another transaction under this GTID; False where it is purged."""
        if not self.has_executed(gtid):
            return False
        found = self.commit_us(gtid)
        return found is not None and found != commit_us

    def commit_us(self, gtid: str) -> int | None:
        """The raw commit time of the server's transaction; None where no binlog has it."""
        while gtid not in self._commits_us:
            name = self._next_file()
            if name is None:
                return None
            self._read(name)
            before = self._before(name)
            if before is None or not before.reaches(parse_gtid_set(gtid, before.flavor)):
                break  # it would be in this file
        return self._commits_us.get(gtid)

    def _next_file(self) -> str | None:
        if self._unread is None:
            with server_errors(self._server.settings, "listing the binlogs of"):
                self._unread = binlog_files(self._server.connection)
        return self._unread.pop() if self._unread else None

    def _before(self, name: str) -> GtidSet | None:
        server = self._server
        with server_errors(server.settings, "reading the binlogs of"):
            return server.family.before_file(server.connection, name)

    def _read(self, name: str) -> None:
        """Add the transactions from the beginning of a file to the first that is known."""
        server = self._server
        found: dict[str, int] = {}
        with closing(ReplicationStream.open_file(server.settings, server.family, name)) as stream:
            where = f"{name} of {server.name}"
            for transaction in transactions(stream, server.family.flavor, where):
                if str(transaction) in self._commits_us:
                    break
                found[str(transaction)] = transaction.commit_us
        self._commits_us |= found


@dataclass(frozen=True, slots=True)
class CommonPoint:
    """`position`: of the log after the last transaction of the part that both have, or None.

    `lost`: the GTIDs of the log's transactions of the part after it, in the log's order;
    `rewritten`: those of them under which the server has another transaction.
    """

    position: GtidSet | None
    lost: list[str]
    rewritten: list[str]


def common_point(
    settings: ShardProducerSettings, part: GtidSet, commits: ServerCommits
) -> CommonPoint:
    """Look back from the log's end for the last transaction of a domain that the server has.

    Of MySQL: of an interval of the log's position.

    Both topics are searched: transactions without rows of the log are in positions alone, and
    those of one Kafka transaction in the log alone. Neither is read where the server has nothing of
    the part: the search would end at the log's beginning.
    """
    if not commits.has_some_of(part):
        return CommonPoint(None, [], [])
    schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
    in_log = _in_log(settings, schema_ids, part, commits)
    in_progress = _in_progress(settings, schema_ids, part, commits)
    found = [position for position in (in_log.position, in_progress) if position is not None]
    # Both lie on one line, where positions grow.
    newest = next((p for p in found if all(p.includes(other) for other in found)), None)
    return CommonPoint(newest, in_log.lost, in_log.rewritten)


def _in_log(
    settings: ShardProducerSettings,
    schema_ids: SchemaIds,
    part: GtidSet,
    commits: ServerCommits,
) -> CommonPoint:
    codec = EventDecoder(schema_ids)
    lost: list[str] = []
    rewritten: list[str] = []
    topics = settings.shard_topics
    with PartitionReader(settings.kafka, topics.log, 0, TAIL_TIMEOUT_S) as reader:
        for record in reader.newest_first():
            event = codec.decode(record.value, topics.shard, record.offset)
            # Records of copies have no GTID, and that of an earlier loss names what no server has.
            if not event.gtid or _is_loss(event) or not is_in(part, event.gtid):
                continue
            if event.gtid in lost[-1:]:
                continue
            # Of a skipped transaction the log does not have the commit time.
            is_skip = event.type is EventType.SKIP
            if not is_skip and commits.differs(event.gtid, event.commit_us):
                rewritten.append(event.gtid)
            elif commits.has_executed(event.gtid):
                return CommonPoint(event.token.position, lost[::-1], rewritten[::-1])
            lost.append(event.gtid)
    return CommonPoint(None, lost[::-1], rewritten[::-1])


def _is_loss(event: VEvent) -> bool:
    return event.type is EventType.SKIP and Skip.of(event).kind is SkipKind.LOST


def _in_progress(
    settings: ShardProducerSettings,
    schema_ids: SchemaIds,
    part: GtidSet,
    commits: ServerCommits,
) -> GtidSet | None:
    topics = settings.shard_topics
    with PartitionReader(settings.kafka, topics.progress, 0, TAIL_TIMEOUT_S) as reader:
        for record in reader.newest_first():
            where = f"{topics.progress}, offset {record.offset}"
            progress = decode_progress(record.value, schema_ids, where)
            own = [last for last in progress.lasts if is_in(part, last.gtid)]
            if own and all(_has(commits, last) for last in own):
                return parse_gtid_set(progress.position, settings.flavor)
    return None


def _has(commits: ServerCommits, last: LastTransaction) -> bool:
    """Whether the server has this very transaction, as far as its binlogs show."""
    if not commits.has_executed(last.gtid):
        return False
    found = commits.commit_us(last.gtid)
    return found is None or last.is_same(found)


@dataclass(frozen=True, slots=True)
class LostTransactions:
    """What a primary lacks of a log. `named`: as the operator has to name it.

    `gtids`: all of them, as far as the log has records; `rewritten`: those that the primary has
    given to other transactions; `rest`: what is left of the log's position.
    """

    named: GtidSet
    gtids: str
    rewritten: list[str]
    rest: GtidSet


def skip_lost(settings: ShardProducerSettings, lost: str, reason: str) -> SkipReport:
    """Set the log back to what the primary has, with a SKIP record that names the lost ones.

    `lost`: exactly what the primary lacks or has given to other transactions, as the refusal names
    it. On MariaDB that is the log's last GTID of each domain with a loss, which stands for those
    before it, too. UsageError otherwise, and what `write_skip` raises.
    """
    topics = settings.shard_topics
    named = parse_gtid_set(lost, settings.flavor)

    def decide(
        position: GtidSet, lasts: tuple[LastTransaction, ...], servers: ServerList
    ) -> SkipDecision:
        view = _primary(servers)
        check_behind(servers.named(view.name), lasts)
        commits = ServerCommits(servers.named(view.name), view)
        found = _find_lost(settings, position, commits, lasts)
        if found.named != named:
            raise UsageError(
                f"--lost {named}: of what {topics.log} holds, the primary {view.name} lacks "
                f"{found.named if str(found.named) else 'nothing'}; --lost takes exactly that"
                + _said(found.rewritten)
            )
        if found.rest.is_empty:
            raise UsageError(
                f"{view.name} has executed nothing of what {topics.log} holds: it is a server of "
                "another shard, or a new one. Correct `servers`"
            )
        fault = find_faults(topics, found.rest, [view], lasts).get(view.name)
        if fault is not None:
            raise fault
        # Lost ones can be compared with nothing.
        kept = tuple(last for last in lasts if found.rest.ends_with(last.gtid))
        return SkipDecision(SkipKind.LOST, str(named), found.gtids, found.rest, view.name, kept)

    return write_skip(settings, reason, decide)


def _said(rewritten: list[str]) -> str:
    if not rewritten:
        return ""
    return f" (it has other transactions under {rewritten[0]} to {rewritten[-1]})"


def _primary(servers: ServerList) -> ServerView:
    primaries = [view for view in servers.look() if not view.is_replica]
    if len(primaries) != 1:
        names = ", ".join(view.name for view in primaries) or "no primary"
        raise UsageError(
            f"{servers.topics.log}: of its servers {names} answers as primary: --lost needs "
            "exactly one. Leave the server that is right in `servers`"
        )
    return primaries[0]


def _find_lost(
    settings: ShardProducerSettings,
    position: GtidSet,
    commits: ServerCommits,
    lasts: Sequence[LastTransaction],
) -> LostTransactions:
    """Compare the log with the primary by GTIDs and commit times, part by part."""
    view = commits.view
    position = remembered(position, view, lasts)
    wanted = lacking(position, view)
    for last in lasts:
        if position.contains_gtid(last.gtid) and not _has(commits, last):
            wanted = wanted.union(parse_gtid_set(last.gtid, settings.flavor))
    points = [(part, common_point(settings, part, commits)) for part in parts_of(position, wanted)]
    for part, point in points:
        if point.position is None and _has_older(view, part, point):
            raise Halt(
                f"{settings.shard_topics.log} holds no transaction of {part} that {view.name} has: "
                "start a new log with a copy"
            )
    rewritten = [gtid for _, point in points for gtid in point.rewritten]
    if isinstance(position, MariadbGtidSet):
        named, gtids, rest = _mariadb(position, points)
        return LostTransactions(named, gtids, rewritten, rest)
    assert isinstance(position, MysqlGtidSet)  # noqa: S101 - one of the two families
    lost = position.subtract(view.history.executed)
    for part, point in points:
        if point.rewritten:
            # Also those without rows, of which the log does not have the commit times.
            lost = lost.union(part if point.position is None else part.subtract(point.position))
    return LostTransactions(lost, str(lost), rewritten, position.subtract(lost))


def _has_older(view: ServerView, part: GtidSet, point: CommonPoint) -> bool:
    """Whether the server may have transactions of a part that its binlogs no longer show.

    Of a domain of MariaDB that begins in its binlogs, or of which it has no trace, it has none: the
    log goes on before the domain's first transaction.
    """
    purged = view.history.purged
    if isinstance(purged, MariadbGtidSet) and isinstance(part, MariadbGtidSet):
        return not part.by_domain().keys().isdisjoint(purged.by_domain())
    return bool(point.rewritten) and not part.intersection(purged).is_empty


def _mariadb(
    position: MariadbGtidSet, points: Sequence[tuple[GtidSet, CommonPoint]]
) -> tuple[GtidSet, str, GtidSet]:
    """What to name, all lost GTIDs, and the position without them."""
    rest = position
    named = MariadbGtidSet()
    lost: list[str] = []
    for part, point in points:
        assert isinstance(part, MariadbGtidSet)  # noqa: S101 - one family per shard
        [(domain, _, _)] = part.domains
        common = point.position
        known = common if isinstance(common, MariadbGtidSet) else MariadbGtidSet()
        rest = rest.at_domain(domain, known)
        named = named.at_domain(domain, part)
        last = part.last_gtids()
        lost += [gtid for gtid in point.lost if gtid != last] + [last]
    return MariadbGtidSet.of(named.by_domain()), ",".join(lost), rest
