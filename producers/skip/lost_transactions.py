"""`skip --lost`: go on with a primary that lost transactions which the log holds."""

from dataclasses import dataclass

from event_token import GtidSet, MariadbGtidSet, MysqlGtidSet, parse_gtid_set
from event_token.errors import Halt, UsageError
from producers.servers.choice import ServerView, find_faults, lacking
from producers.servers.server_list import ServerList
from producers.settings import ShardProducerSettings
from producers.skip.common_point import CommonPoint, common_point
from producers.skip.gtid_sources import of_source, source_of, sources_of
from producers.skip.out_of_order import check_behind
from producers.skip.record_writer import Decision, SkipReport
from producers.skip.server_commits import ServerCommits
from producers.skip.skip_log import write_skip
from topics.names import ShardTopics
from topics.progress.committed_tail import last_progress
from topics.progress.record import LastTransaction
from topics.records.skip_record import SkipKind
from topics.schemas.registry import open_schema_ids


@dataclass(frozen=True, slots=True)
class Lost:
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
    topics = ShardTopics(settings.keyspace, settings.shard)
    named = parse_gtid_set(lost, settings.flavor)

    def decide(position: GtidSet, last: LastTransaction | None, servers: ServerList) -> Decision:
        view = _primary(topics, servers)
        check_behind(topics, servers.named(view.name), last)
        commits = ServerCommits(servers.named(view.name), view)
        found = _find_lost(settings, topics, position, (view, commits))
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
        return Decision(SkipKind.LOST, str(named), found.gtids, found.rest, view.name, last=None)

    return write_skip(settings, reason, decide)


def _said(rewritten: list[str]) -> str:
    if not rewritten:
        return ""
    return f" (it has other transactions under {rewritten[0]} to {rewritten[-1]})"


def _primary(topics: ShardTopics, servers: ServerList) -> ServerView:
    primaries = [view for view in servers.look() if not view.is_replica]
    if len(primaries) != 1:
        names = ", ".join(view.name for view in primaries) or "no primary"
        raise UsageError(
            f"{topics.log}: of its servers {names} answers as primary: --lost needs exactly one. "
            "Leave the server that is right in `servers`"
        )
    return primaries[0]


def _find_lost(
    settings: ShardProducerSettings,
    topics: ShardTopics,
    position: GtidSet,
    asked: tuple[ServerView, ServerCommits],
) -> Lost:
    """Compare the log with the primary by GTIDs and commit times, source by source."""
    view, commits = asked
    missing = lacking(position, view)
    sources = sources_of(missing)
    schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
    progress = last_progress(settings.kafka, topics, schema_ids)
    last = None if progress is None else progress.last
    if last is not None and (
        commits.differs(last.gtid, last.commit_us) or not commits.has_executed(last.gtid)
    ):
        sources.add(source_of(last.gtid))
    points = {source: common_point(settings, topics, source, commits) for source in sorted(sources)}
    for source, point in points.items():
        if point.position is None and (point.rewritten or isinstance(missing, MariadbGtidSet)):
            raise Halt(
                f"{topics.log} holds no transaction of {source} that {view.name} has: start a new "
                f"log with a copy"
            )
    rewritten = [gtid for point in points.values() for gtid in point.rewritten]
    if isinstance(position, MariadbGtidSet):
        named, gtids, rest = _mariadb(position, points)
        return Lost(named, gtids, rewritten, rest)
    assert isinstance(position, MysqlGtidSet)  # noqa: S101 - one of the two families
    lost = position.subtract(view.history.executed)
    for source, point in points.items():
        if point.rewritten and point.position is not None:
            # Also those without rows, of which the log does not have the commit times.
            lost = lost.union(of_source(position.subtract(point.position), source))
    return Lost(lost, str(lost), rewritten, position.subtract(lost))


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
