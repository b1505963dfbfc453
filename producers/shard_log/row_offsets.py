"""Where the rows of a Kafka transaction lie in the shard log, and where the next ones should."""

from producers.errors import LogDisagrees


class RowOffsets:
    """Takes offsets from delivery reports of one producer; predicts those of its next transaction.

    Between the rows of two transactions lies the commit marker of the first and nothing else. That
    is relied on only where it was so the last time: a marker can be written twice when a broker
    dies, and others may have written to the topic.
    """

    def __init__(self, topic: str) -> None:
        """`topic`: the shard log. Nothing is known of its end yet."""
        self._topic = topic
        self._first = -1
        self._last = -1
        self._end = -1  # one past the last row of the transaction before
        self._is_regular = False

    def begin(self) -> None:
        """Expect the reports of a new transaction."""
        self._first = self._last = -1

    def add(self, offset: int) -> None:
        """Take a report; the first and the last row of a transaction must have one."""
        if self._first < 0:
            self._first = offset
        self._last = offset

    @property
    def predicted(self) -> int:
        """Where the first row should lie of the transaction not taken yet; -1: not known."""
        return self._end + 1 if self._is_regular else -1

    def take(self, count: int) -> int:
        """Return the first offset of a transaction's `count` rows, which are all stored.

        LogDisagrees when they are not contiguous.
        """
        first, last = self._first, self._last
        if first < 0 or last - first + 1 != count:
            raise LogDisagrees(
                f"{self._topic}: {count} records were written, but the first lies at offset "
                f"{first} and the last at {last}: something else writes to this topic, or the "
                "broker lost records. The transaction is aborted; find the other writer"
            )
        self._is_regular = self._end >= 0 and first == self._end + 1
        self._end = last + 1
        return first
