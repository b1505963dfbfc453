"""The logs that a stream reads: those of the shards of its position."""

from collections.abc import Callable

from event_token import StreamPosition
from topics.stream.log_reader import ShardLogReader


class ShardLogs:
    """A reader per shard; a hop replaces some of them."""

    def __init__(self, open_reader: Callable[[str], ShardLogReader]) -> None:
        """Read nothing before `follow`."""
        self.readers: dict[str, ShardLogReader] = {}
        self._open_reader = open_reader

    def follow(self, position: StreamPosition) -> None:
        """Read the logs of a position: at the start and after each hop."""
        for shard in self.readers.keys() - position.shards.keys():
            self.readers.pop(shard).close()
        for shard in position.shards.keys() - self.readers.keys():
            at = position.shards[shard]
            self.readers[shard] = reader = self._open_reader(shard)
            # Fetch rows while their progress is still arriving.
            reader.seek(at.offset, at.seq + 1)

    def stop(self) -> None:
        """End a wait, from any thread."""
        for reader in list(self.readers.values()):
            reader.stop()

    def close(self) -> None:
        """Close all consumers."""
        for reader in self.readers.values():
            reader.close()
