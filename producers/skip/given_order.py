"""Checks an operator's order to pass stops before anything is taken over."""

from collections.abc import Callable, Collection
from contextlib import closing
from itertools import islice
from typing import Final

from event_token import Flavor, GtidSet, MariadbGtidSet, parse_gtid_set
from event_token.errors import UsageError
from event_token.named_gtids import NamedGtids
from producers.servers.server_list import OpenServer, ServerList
from producers.settings import ShardProducerSettings
from producers.skip.one_transaction import choose_server, parse_gtid
from producers.skip.out_of_order import following
from producers.skip.record_writer import SkipReport
from producers.skip.skip_log import check_reason, empty_log
from producers.skip.skip_order import SkipOrder
from topics.names import ShardTopics
from topics.progress.committed_tail import last_progress
from topics.progress.record import LastTransaction
from topics.schemas.registry import open_schema_ids
from topics.stream.arguments import checked_tables

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
    topics = ShardTopics(settings.keyspace, settings.shard)
    schema_ids = open_schema_ids(settings.kafka, settings.registry_url)
    last = last_progress(settings.kafka, topics, schema_ids)
    if last is None:
        raise empty_log(topics)
    position = parse_gtid_set(last.position, settings.flavor)
    with closing(ServerList.open(settings)) as servers:
        server = choose_server(topics, servers, position, last.last)
        executed = server.history().executed
        ends = [parse_gtid(text, settings.flavor) for text in gtids]
        if _ran_backwards(server, position, gtids, last.last):
            return None
    if until:
        ends = [parse_gtid(until, settings.flavor)]
    for end in ends:
        _check(topics, server.name, end, position, executed)
    if not ends:
        ends = [executed]
    return SkipOrder(
        until=_all_of(ends),
        reason=reason,
        on_skip=on_skip,
        gtids=NamedGtids.parse(gtids) if gtids else None,
        tables=checked_tables(tables or None),
    )


def _ran_backwards(
    server: OpenServer, position: GtidSet, gtids: Collection[str], last: LastTransaction | None
) -> bool:
    """Whether a GTID is one of those that a position of MariaDB cannot tell from earlier ones."""
    if not isinstance(position, MariadbGtidSet):
        return False
    domains = {int(gtid.partition("-")[0]) for gtid in gtids}
    behind = [following(server, position, domain, last) for domain in sorted(domains)]
    return any(found.passed and set(gtids) & set(found.gtids) for found in behind)


def _check(
    topics: ShardTopics, server: str, wanted: GtidSet, position: GtidSet, executed: GtidSet
) -> None:
    # Who wrote a number is not asked: a server that was demoted and promoted again knows only the
    # last GTID of each writer, and its earlier ones would count as the others'.
    if position.reaches(wanted):
        raise UsageError(
            f"{topics.log} is already past {wanted}: its position is {position}. The shard does "
            "not stop there, or it was skipped before"
        )
    if not executed.reaches(wanted):
        raise UsageError(f"{server} has not executed {wanted}: check the GTID")


def _all_of(ends: list[GtidSet]) -> GtidSet:
    whole = ends[0]
    for end in ends[1:]:
        whole = whole.union(end)
    return whole
