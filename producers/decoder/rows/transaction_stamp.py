"""What the records of one transaction share, encoded once: token, commit time and GTID."""

from librt.strings import BytesWriter
from mypy_extensions import i64

from producers.decoder.values.wire import write_long, write_string
from topics.progress.record import GRID_US


class TransactionStamp:
    """The shared bytes, Kafka's timestamp, and the ticks of the cells that records begin."""

    def __init__(self, shard: str, last_cell_us: i64) -> None:
        """`last_cell_us`: start of the grid cell of the log's last record, -1 for none."""
        self.encoded: bytes = b""
        self.timestamp_ms: i64 = 0
        self.ticks: list[tuple[int, int]] = []
        self._shard: bytes = shard.encode("utf-8")
        self._grid_us: i64 = GRID_US
        self._last_cell_us: i64 = last_cell_us
        self._timestamp_us: i64 = -1
        self._out: BytesWriter = BytesWriter()

    def begin_transaction(self, timestamp_us: i64, next_seq: i64) -> None:
        """Set the time of the records from `next_seq` on."""
        if timestamp_us != self._timestamp_us:
            self._timestamp_us = timestamp_us
            self.timestamp_ms = timestamp_us // 1000
            cell = timestamp_us - timestamp_us % self._grid_us
            if cell != self._last_cell_us:
                self._last_cell_us = cell
                self.ticks.append((cell, next_seq))

    def begin(self) -> BytesWriter:
        """Begin to encode the shared bytes; `end` follows.

        The caller writes the position; the origin's null branch and, if there is one, the token
        of the source's transaction; the commit time; the GTID.
        """
        out = self._out
        out.truncate(0)
        write_long(out, self._timestamp_us)
        write_string(out, self._shard)
        return out

    def end(self) -> None:
        """The shared bytes are complete."""
        self.encoded = self._out.getvalue()
