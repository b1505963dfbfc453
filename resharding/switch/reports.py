"""Removes the reports of appliers whose reshards are over from the readers' topic."""

from resharding.switch.settings import SwitchSettings
from topics.keyspace.topology import UNDER_WAY, read_topology
from topics.readers.feed import forget_appliers


def remove_reports(settings: SwitchSettings) -> None:
    """Remove them; nobody reads them any more, and a compacted topic would keep them for ever."""
    topology = read_topology(settings.kafka, settings.keyspace)
    reshards = () if topology is None else topology.reshards
    under_way = {entry.reshard_id for entry in reshards if entry.state in UNDER_WAY}
    forget_appliers(settings.kafka, settings.keyspace, under_way)
