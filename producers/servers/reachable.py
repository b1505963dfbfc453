"""Whether a server can serve the log's position, by GTID sets alone. Pure."""

from typing import Final

from databases.server_facts import ServerHistory
from event_token import GtidSet
from producers.errors import BinlogPurged, ReplicaBehindLog, ServerBehindLog
from producers.skip.advice import lost_advice
from topics.names import ShardTopics

# Longer GTID sets are cut in messages.
_SHOWN_CHARS_MAX: Final = 500


def check_reachable(
    topics: ShardTopics, server: str, position: GtidSet, there: ServerHistory, *, replica: bool
) -> None:
    """Check purged <= position <= executed; of MariaDB's positions that are of one history.

    BinlogPurged if the server has purged what the log still needs; ServerBehindLog if a primary,
    ReplicaBehindLog if a replica lacks what the log holds.
    """
    if not position.reaches(there.purged):
        gone = shown(there.purged.beyond(position))
        raise BinlogPurged(
            f"{topics.log} is at {shown(position)}; {server} has purged {gone} from its binlogs: "
            "use a server that has it, or start a new log with a copy"
        )
    if there.executed.reaches(position):
        return
    missing = position.beyond(there.executed)
    lacking = shown(missing)
    if replica:
        raise ReplicaBehindLog(f"replica {server} has not yet applied {lacking} of {topics.log}")
    raise ServerBehindLog(
        f"{topics.log} holds {lacking}, which {server} has never executed: a failover lost these "
        "transactions, or this is the wrong server. Readers of the log may have them already: "
        f"decide which of the two is right. {lost_advice(topics, str(missing))}"
    )


def shown(position: GtidSet) -> str:
    """The set as text, cut if it is long."""
    text = str(position)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."
