"""`skip --lost`: go on with a primary that lost transactions which the log holds."""

from event_token import GtidSet, MariadbGtidSet, parse_gtid_set
from event_token.errors import Halt, UsageError
from producers.servers.choice import ServerView, find_faults, is_known, lacking
from producers.servers.server_list import ServerList
from producers.settings import ShardProducerSettings
from producers.skip.common_point import common_point
from producers.skip.skip_log import Decision, SkipReport, write_skip
from topics.names import ShardTopics
from topics.records.skip_record import SkipKind


def skip_lost(settings: ShardProducerSettings, lost: str, reason: str) -> SkipReport:
    """Set the log back to what the primary has, with a SKIP record that names the lost ones.

    `lost`: exactly what the primary lacks, as the producer's message names it. On MariaDB that is
    the log's last GTID of each domain with a loss, which stands for those before it, too.
    UsageError otherwise, and what `write_skip` raises.
    """
    topics = ShardTopics(settings.keyspace, settings.shard)
    named = parse_gtid_set(lost, settings.flavor)

    def decide(position: GtidSet, servers: ServerList) -> Decision:
        view = _primary(topics, servers)
        missing = lacking(position, view)
        if missing != named:
            raise UsageError(
                f"--lost {named}: of what {topics.log} holds, the primary {view.name} lacks "
                f"{missing if str(missing) else 'nothing'}; --lost takes exactly that"
            )
        if isinstance(position, MariadbGtidSet):
            rest, gtids = _mariadb(settings, topics, position, view)
        else:
            rest, gtids = position.subtract(missing), str(missing)
        if rest.is_empty:
            raise UsageError(
                f"{view.name} has executed nothing of what {topics.log} holds: it is a server of "
                "another shard, or a new one. Correct `servers`"
            )
        fault = find_faults(topics, rest, [view]).get(view.name)
        if fault is not None:
            raise fault
        return Decision(SkipKind.LOST, str(named), gtids, rest, view.name)

    return write_skip(settings, reason, decide)


def _primary(topics: ShardTopics, servers: ServerList) -> ServerView:
    primaries = [view for view in servers.look() if not view.is_replica]
    if len(primaries) != 1:
        names = ", ".join(view.name for view in primaries) or "no primary"
        raise UsageError(
            f"{topics.log}: of its servers {names} answers as primary: --lost needs exactly one. "
            "Leave the server that is right in `servers`"
        )
    return primaries[0]


def _mariadb(
    settings: ShardProducerSettings,
    topics: ShardTopics,
    position: MariadbGtidSet,
    view: ServerView,
) -> tuple[GtidSet, str]:
    """The position without the lost transactions, and their GTIDs as far as the log has records."""
    domains = position.by_domain()
    lost: list[str] = []
    for domain, server, number in position.domains:
        if is_known(view, domain, server, number):
            continue
        point = common_point(settings, topics, domain, view)
        if point.last is None:
            raise Halt(
                f"{topics.log} holds no transaction of domain {domain} that {view.name} has: "
                "start a new log with a copy"
            )
        domains[domain] = point.last
        last = f"{domain}-{server}-{number}"
        lost += [gtid for gtid in point.lost if gtid != last] + [last]
    return MariadbGtidSet.of(domains), ",".join(lost)
