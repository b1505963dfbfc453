"""Removes the reports of appliers whose reshards are over from the readers' topic."""

import logging
from typing import Final

from event_token.errors import Rebuild, Retry, UsageError
from resharding.switch.settings import SwitchSettings
from topics.keyspace.topology import UNDER_WAY, read_topology
from topics.readers.feed import forget_appliers

_LOG: Final = logging.getLogger("shardstream.reshard")


def remove_reports(settings: SwitchSettings) -> None:
    """Remove them; nobody reads them any more, and a compacted topic would keep them for ever.

    The command has done its work by then: a failure is a warning, and the next one removes them.
    """
    try:
        topology = read_topology(settings.kafka, settings.keyspace)
        reshards = () if topology is None else topology.reshards
        under_way = {entry.reshard_id for entry in reshards if entry.state in UNDER_WAY}
        forget_appliers(settings.kafka, settings.keyspace, under_way)
    except (UsageError, Retry, Rebuild) as error:
        _LOG.warning("reports of appliers stay in the readers' topic: %s", error)
