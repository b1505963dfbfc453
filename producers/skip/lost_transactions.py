"""`skip --lost`: go on with a primary that lost transactions which the log holds."""

from contextlib import closing
from dataclasses import dataclass
from uuid import UUID

from databases.server_facts import binlog_files
from event_token import GtidSet, MariadbGtidSet, MysqlGtidSet, parse_gtid_set
from event_token.errors import Halt, UsageError
from event_token.mariadb_gtid import parse_mariadb_gtid
from producers.replication.gtid_scan import transactions
from producers.replication.stream import ReplicationStream, server_errors
from producers.servers.choice import ServerView, find_faults, is_known, is_purged, lacking
from producers.servers.server_list import OpenServer, ServerList
from producers.settings import ShardProducerSettings
from producers.skip.record_writer import SkipDecision, SkipReport, write_skip
from producers.start.last_transaction import check_behind
from topics.kafka.partition_reader import TAIL_TIMEOUT_S, PartitionReader
from topics.progress.codec import decode_progress
from topics.progress.committed_tail import last_progress
from topics.progress.record import LastTransaction
from topics.records.event_decoder import EventDecoder
from topics.records.skip_record import Skip, SkipKind
from topics.records.table_shape import SchemaIds
from topics.records.vevent import EventType, VEvent
from topics.schemas import open_schema_ids


def source_of(gtid: str) -> str:
    """The source of a GTID."""
    head, separator, _ = gtid.rpartition(":")
    return head if separator else gtid.partition("-")[0]


def sources_of(gtids: GtidSet) -> set[str]:
    """The sources of a set."""
    if isinstance(gtids, MysqlGtidSet):
        return {_mysql_source(*tsid) for tsid, _ in gtids.servers}
    return {str(domain) for domain in gtids.by_domain()}


def of_source(gtids: MysqlGtidSet, source: str) -> MysqlGtidSet:
    """The part of a set that one source numbers."""
    return MysqlGtidSet.of(
        {tsid: list(parts) for tsid, parts in gtids.servers if _mysql_source(*tsid) == source}
    )


def _mysql_source(sid: bytes, tag: str) -> str:
    return f"{UUID(bytes=sid)}:{tag}" if tag else str(UUID(bytes=sid))


class ServerCommits:
    """The transactions of one server. Its binlogs are read as far back as they are asked for."""

    def __init__(self, server: OpenServer, view: ServerView) -> None:
        """`view`: what the server has just reported."""
        self.view = view
        self._server = server
        self._commits_us: dict[str, int] = {}
        self._unread: list[str] | None = None

    @property
    def sources(self) -> set[str]:
        """The sources of all that it has executed."""
        history = self.view.history
        return sources_of(history.executed) | sources_of(history.purged)

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
        return self._commit_us(gtid) is not None

    def differs(self, gtid: str, commit_us: int) -> bool:
        """Whether the server has another transaction under this GTID; False where it is purged."""
        if not self.has_executed(gtid):
            return False
        found = self._commit_us(gtid)
        return found is not None and found != commit_us

    def _commit_us(self, gtid: str) -> int | None:
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
    """`position`: of the log after the last transaction of the source that both have, or None.

    `lost`: the GTIDs of the log's transactions of the source after it, in the log's order;
    `rewritten`: those of them under which the server has another transaction.
    """

    position: GtidSet | None
    lost: list[str]
    rewritten: list[str]


def common_point(
    settings: ShardProducerSettings, source: str, commits: ServerCommits
) -> CommonPoint:
    """Look back from the log's end for the last transaction of a source that the server has.

    Both topics are searched: transactions without rows of the log are in positions alone, and
    those of one Kafka transaction in the log alone. Neither is read where the server has nothing of
    the source: the search would end at the log's beginning.
    """
    if source not in commits.sources:
        return CommonPoint(None, [], [])
    schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
    in_log = _in_log(settings, schema_ids, source, commits)
    in_progress = _in_progress(settings, schema_ids, source, commits)
    found = [position for position in (in_log.position, in_progress) if position is not None]
    # Both lie on one line, where positions grow.
    newest = next((p for p in found if all(p.includes(other) for other in found)), None)
    return CommonPoint(newest, in_log.lost, in_log.rewritten)


def _in_log(
    settings: ShardProducerSettings,
    schema_ids: SchemaIds,
    source: str,
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
            if not event.gtid or _is_loss(event) or source_of(event.gtid) != source:
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
    source: str,
    commits: ServerCommits,
) -> GtidSet | None:
    topics = settings.shard_topics
    with PartitionReader(settings.kafka, topics.progress, 0, TAIL_TIMEOUT_S) as reader:
        for record in reader.newest_first():
            where = f"{topics.progress}, offset {record.offset}"
            progress = decode_progress(record.value, schema_ids, where)
            last = progress.last
            if last is None or source_of(last.gtid) != source:
                continue
            if commits.has_executed(last.gtid) and not commits.differs(last.gtid, last.commit_us):
                return parse_gtid_set(progress.position, settings.flavor)
    return None


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
        position: GtidSet, last: LastTransaction | None, servers: ServerList
    ) -> SkipDecision:
        view = _primary(servers)
        check_behind(servers.named(view.name), last)
        commits = ServerCommits(servers.named(view.name), view)
        found = _find_lost(settings, position, commits)
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
        fault = find_faults(topics, found.rest, [view]).get(view.name)
        if fault is not None:
            raise fault
        # Lost ones can be compared with nothing.
        return SkipDecision(
            SkipKind.LOST, str(named), found.gtids, found.rest, view.name, last=None
        )

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
) -> LostTransactions:
    """Compare the log with the primary by GTIDs and commit times, source by source."""
    view = commits.view
    missing = lacking(position, view)
    sources = sources_of(missing)
    schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
    progress = last_progress(settings.kafka, settings.shard_topics, schema_ids)
    last = None if progress is None else progress.last
    if last is not None and (
        commits.differs(last.gtid, last.commit_us) or not commits.has_executed(last.gtid)
    ):
        sources.add(source_of(last.gtid))
    points = {source: common_point(settings, source, commits) for source in sorted(sources)}
    for source, point in points.items():
        if point.position is None and (point.rewritten or isinstance(missing, MariadbGtidSet)):
            raise Halt(
                f"{settings.shard_topics.log} holds no transaction of {source} that {view.name} "
                "has: start a new log with a copy"
            )
    rewritten = [gtid for point in points.values() for gtid in point.rewritten]
    if isinstance(position, MariadbGtidSet):
        named, gtids, rest = _mariadb(position, points)
        return LostTransactions(named, gtids, rewritten, rest)
    assert isinstance(position, MysqlGtidSet)  # noqa: S101 - one of the two families
    lost = position.subtract(view.history.executed)
    for source, point in points.items():
        if point.rewritten and point.position is not None:
            # Also those without rows, of which the log does not have the commit times.
            lost = lost.union(of_source(position.subtract(point.position), source))
    return LostTransactions(lost, str(lost), rewritten, position.subtract(lost))


def _mariadb(
    position: MariadbGtidSet, points: dict[str, CommonPoint]
) -> tuple[GtidSet, str, GtidSet]:
    """What to name, all lost GTIDs, and the position without them."""
    rest = position
    named: dict[int, tuple[int, int]] = {}
    lost: list[str] = []
    for domain, server, number in position.domains:
        point = points.get(str(domain))
        if point is None or not isinstance(point.position, MariadbGtidSet):
            continue
        rest = rest.at_domain(domain, point.position)
        named[domain] = (server, number)
        last = f"{domain}-{server}-{number}"
        lost += [gtid for gtid in point.lost if gtid != last] + [last]
    return MariadbGtidSet.of(named), ",".join(lost), rest
