"""Whether a server can serve the log's position, by GTID sets alone. Pure."""

from typing import Final

from databases.server_facts import ServerHistory
from event_token import GtidSet
from producers.errors import BinlogPurged, ReplicaBehindLog, ServerBehindLog
from topics.names import ShardTopics

# Longer GTID sets are cut in messages.
_SHOWN_CHARS_MAX: Final = 500


def check_reachable(
    topics: ShardTopics, server: str, position: GtidSet, there: ServerHistory, *, replica: bool
) -> None:
    """Check purged <= position <= executed.

    BinlogPurged when the server has dropped what is still needed; ServerBehindLog when a primary,
    ReplicaBehindLog when a replica lacks what the log holds.
    """
    if not position.includes(there.purged):
        gone = shown(there.purged.subtract(position))
        raise BinlogPurged(
            f"{topics.log} stands at {shown(position)}, and {server} no longer has {gone} in its "
            "binlogs: use a server that does, or start a new log with a copy"
        )
    if there.executed.includes(position):
        return
    lacking = shown(position.subtract(there.executed))
    if replica:
        raise ReplicaBehindLog(f"replica {server} has not yet applied {lacking} of {topics.log}")
    raise ServerBehindLog(
        f"{topics.log} holds {lacking}, which {server} has never executed: a failover lost these "
        "transactions, or this is the wrong server. The log's readers have them already; decide "
        "which of the two is right"
    )


def shown(position: GtidSet) -> str:
    """The set as text, cut where it is long."""
    text = str(position)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."
