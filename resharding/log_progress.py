"""How far shard logs are, compared with what their servers have executed."""

from typing import Any

from databases.server_facts import facts_of
from event_token import Flavor, GtidSet, parse_gtid_set
from topics.progress.record import Progress


def executed_set(connection: Any, flavor: Flavor) -> GtidSet:
    """All transactions that the server has executed by now."""
    return parse_gtid_set(facts_of(flavor).moment(connection).executed, flavor)


def has_reached(progress: Progress | None, executed: GtidSet) -> bool:
    """Whether a log holds everything that its server had executed."""
    if progress is None:
        return False
    return parse_gtid_set(progress.position, executed.flavor).includes(executed)
