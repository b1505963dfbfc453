"""`skip --gtid`: pass one transaction that stops the shard."""

from contextlib import closing

from event_token import Flavor, GtidSet, MariadbGtidSet, MysqlGtidSet, parse_mysql_gtid
from event_token.errors import UsageError
from event_token.mariadb_gtid import parse_mariadb_gtid
from producers.replication.gtid_scan import transactions
from producers.replication.stream import ReplicationStream, random_server_id
from producers.servers.server_list import OpenServer, ServerList
from producers.settings import ShardProducerSettings
from producers.skip.marks import refuse_mark
from producers.skip.skip_log import Decision, SkipReport, write_skip
from topics.names import ShardTopics
from topics.records.skip_record import SkipKind


def skip_transaction(settings: ShardProducerSettings, gtid: str, reason: str) -> SkipReport:
    """Write a SKIP record for a transaction that is on the server and not in the log.

    MySQL: any such GTID. MariaDB: only the next one of its domain, for a position of MariaDB
    cannot leave one out. Never a mark of a reshard. UsageError otherwise, and what `write_skip`
    raises.
    """
    topics = ShardTopics(settings.keyspace, settings.shard)
    wanted = _parsed(gtid, settings.flavor)

    def decide(position: GtidSet, servers: ServerList) -> Decision:
        if position.includes(wanted):
            raise UsageError(
                f"{topics.log} is already past {wanted}: its position is {position}. The shard "
                "does not stop there, or it was skipped before"
            )
        server = servers.choose(topics, position).server
        if not server.history().executed.includes(wanted):
            raise UsageError(f"{server.name} has not executed {wanted}: check --gtid")
        if isinstance(position, MariadbGtidSet) and isinstance(wanted, MariadbGtidSet):
            _check_next(topics, position, wanted, server)
        refuse_mark(settings, server, position, wanted)
        return Decision(
            SkipKind.TRANSACTION, str(wanted), str(wanted), position.union(wanted), server.name
        )

    return write_skip(settings, reason, decide)


def _parsed(gtid: str, flavor: Flavor) -> GtidSet:
    """The set of this one GTID; GtidError (a UsageError) unless it is one."""
    if flavor is Flavor.MYSQL:
        parse_mysql_gtid(gtid)
        return MysqlGtidSet.parse(gtid)
    return MariadbGtidSet((parse_mariadb_gtid(gtid),))


def _check_next(
    topics: ShardTopics, position: MariadbGtidSet, wanted: MariadbGtidSet, server: OpenServer
) -> None:
    """Refuse a GTID of MariaDB other than the first one after the position in its domain."""
    [(domain, _, number)] = wanted.domains
    executed = server.history().executed
    there = executed.by_domain() if isinstance(executed, MariadbGtidSet) else {}
    here = position.by_domain()
    if there.get(domain, (0, 0))[1] <= here.get(domain, (0, 0))[1]:
        raise UsageError(f"{server.name} has nothing in domain {domain} after {position}")
    where = f"{server.name} after {position}"
    stream = ReplicationStream.open(server.settings, server.family, position, random_server_id())
    with closing(stream):
        for transaction in transactions(stream, Flavor.MARIADB, where):
            if transaction.gtid[0] != domain:
                continue
            if str(transaction) != str(wanted):
                raise UsageError(
                    f"{topics.log}: the next transaction of domain {domain} is {transaction}, not "
                    f"{wanted}: a position of MariaDB cannot leave out number {number} alone. "
                    "Start the producer: it names the transaction that stops it"
                )
            return
