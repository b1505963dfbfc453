"""The logs that a stream reads: those of the shards of its position."""

from collections.abc import Callable, Iterator

from event_token import StreamPosition
from topics.reading.merge import Run
from topics.reading.planner import ShardRange
from topics.records.record_decoder import RecordDecoder
from topics.records.run_reader import Rows, RunReader
from topics.stream.log_reader import ShardLogReader


class ShardLogs:
    """A reader per shard; a hop replaces some of them."""

    def __init__(
        self,
        open_reader: Callable[[str], ShardLogReader],
        decoder: RecordDecoder,
        *,
        for_records: bool,
        with_images: bool = False,
    ) -> None:
        """Read nothing before `follow`. `for_records`, `with_images`: as of `RunReader`."""
        self._for_records = for_records
        self._with_images = with_images
        self.readers: dict[str, ShardLogReader] = {}
        self._open_reader = open_reader
        self._decoder = decoder
        self._run_readers: dict[str, RunReader] = {}

    def follow(self, position: StreamPosition) -> None:
        """Read the logs of a position: at the start and after each hop."""
        for shard in self.readers.keys() - position.shards.keys():
            self.readers.pop(shard).close()
            del self._run_readers[shard]
        for shard in position.shards.keys() - self.readers.keys():
            at = position.shards[shard]
            self.readers[shard] = reader = self._open_reader(shard)
            # Fetch rows while their progress is still arriving.
            reader.seek(at.offset, at.seq + 1)
            self._run_readers[shard] = RunReader(
                shard,
                self._decoder.reader_of,
                for_records=self._for_records,
                with_images=self._with_images,
            )

    def runs(self, part: ShardRange, frontier_us: int | None) -> Iterator[Run[Rows]]:
        """Yield the rows of a range of one shard, as `ShardLogReader.runs` does."""
        into = self._run_readers[part.shard]
        return self.readers[part.shard].runs(part, into, self._decoder, frontier_us)

    def stop(self) -> None:
        """End a wait, from any thread."""
        for reader in list(self.readers.values()):
            reader.stop()

    def close(self) -> None:
        """Close all consumers."""
        for reader in self.readers.values():
            reader.close()
