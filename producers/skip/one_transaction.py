"""Pass one transaction without looking whether it stops the shard: `skip --gtid --force`."""

from event_token import Flavor, GtidSet, MariadbGtidSet, MysqlGtidSet, parse_mysql_gtid
from event_token.errors import UsageError
from event_token.mariadb_gtid import parse_mariadb_gtid
from producers.errors import ServerBehindLog
from producers.servers.choice import lacking
from producers.servers.server_list import OpenServer, ServerList
from producers.settings import ShardProducerSettings
from producers.skip.marks import refuse_mark, refuse_mark_at
from producers.skip.out_of_order import Following, check_behind, following, ran_backwards
from producers.skip.record_writer import Decision, SkipReport
from producers.skip.skip_log import write_skip
from topics.names import ShardTopics
from topics.progress.record import LastTransaction
from topics.records.skip_record import SkipKind


def skip_transaction(settings: ShardProducerSettings, gtid: str, reason: str) -> SkipReport:
    """Write a SKIP record for a transaction that is on the server and not in the log.

    MySQL: any such GTID. MariaDB: only the next one of its domain, for a position of MariaDB
    cannot leave one out; and where numbers ran backwards, all of those up to the first number above
    the log's, together with it. Never a mark of a reshard. UsageError otherwise, and what
    `write_skip` raises.
    """
    topics = ShardTopics(settings.keyspace, settings.shard)
    wanted = parse_gtid(gtid, settings.flavor)

    def decide(position: GtidSet, last: LastTransaction | None, servers: ServerList) -> Decision:
        server = choose_server(topics, servers, position, last)
        if isinstance(position, MariadbGtidSet) and isinstance(wanted, MariadbGtidSet):
            found = following(server, position, wanted.domains[0][0], last)
            if found.passed and str(wanted) in found.gtids:
                return _all(settings, server, position, found)
        else:
            found = None
        check_ahead(topics, server, position, wanted)
        if found is not None:
            _check_next(topics, wanted, found)
        refuse_mark(settings, server, position, wanted)
        text = str(wanted)
        after = position.add_gtid(text)
        return Decision(SkipKind.TRANSACTION, text, text, after, server.name, last)

    return write_skip(settings, reason, decide)


def choose_server(
    topics: ShardTopics, servers: ServerList, position: GtidSet, last: LastTransaction | None
) -> OpenServer:
    """The server that continues from a position; NumbersRanBackwards where one hides what follows.

    Raises what `ServerList.choose` raises.
    """
    try:
        return servers.choose(topics, position).server
    except ServerBehindLog:
        primary = servers.primary()
        if primary is not None:
            check_behind(topics, primary, last)
        raise


def check_ahead(
    topics: ShardTopics, server: OpenServer, position: GtidSet, wanted: GtidSet
) -> None:
    """UsageError if the log is past a transaction, or the server cannot have it.

    Of MariaDB's GTIDs a server knows the last one per writer: an earlier one may be there.
    """
    if position.reaches(wanted):
        raise UsageError(
            f"{topics.log} is already past {wanted}: its position is {position}. The shard does "
            "not stop there, or it was skipped before"
        )
    view = server.view or server.look(is_replica=server.is_replica())
    if not lacking(wanted, view).is_empty:
        raise UsageError(f"{server.name} has not executed {wanted}: check the GTID")


def parse_gtid(gtid: str, flavor: Flavor) -> GtidSet:
    """The set of this one GTID; GtidError (a UsageError) unless it is one."""
    if flavor is Flavor.MYSQL:
        parse_mysql_gtid(gtid)
        return MysqlGtidSet.parse(gtid)
    parse_mariadb_gtid(gtid)
    return MariadbGtidSet.parse(gtid)


def _all(
    settings: ShardProducerSettings, server: OpenServer, position: GtidSet, found: Following
) -> Decision:
    """Pass all that is out of order: the log can only go on behind the first number above."""
    if found.above is None:
        raise ran_backwards(ShardTopics(settings.keyspace, settings.shard), server, found)
    for transaction in (*found.passed, found.above):
        refuse_mark_at(settings, server, transaction)
    above = str(found.above)
    after = position.add_gtid(above)
    # By its number the log's last transaction would be looked for among those that are passed.
    return Decision(
        SkipKind.TRANSACTION, above, ",".join(found.gtids), after, server.name, last=None
    )


def _check_next(topics: ShardTopics, wanted: GtidSet, found: Following) -> None:
    """Refuse a GTID of MariaDB other than the first one after the position in its domain."""
    if str(found.above) != str(wanted):
        more = "" if not found.passed else f", behind {found.passed[0]}, which is out of order"
        above = found.above or "not there yet"
        raise UsageError(
            f"{topics.log}: the next transaction of this domain is {above}{more}, not "
            f"{wanted}: a position of MariaDB cannot leave out one number alone. Start the "
            "producer: it names the transaction that stops it"
        )
