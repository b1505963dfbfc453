"""An operator's order to pass what stops a shard, carried out by a producer's own sessions.

Only a decoder with the producer's settings can tell what stops: no list of GTIDs passes a
transaction that can be logged. The order is kept by the process alone. Each SKIP record is
committed with the position behind it, so after a kill the same order goes on where it was.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from event_token import GtidSet
from event_token.named_gtids import NamedGtids
from producers.decoder import Decoder
from producers.decoder.errors import (
    CorruptBinlog,
    DecoderHalt,
    HiddenType,
    RuleBroken,
    WriteAfterEnd,
)
from producers.skip.record_writer import SkipReport

# Rows after the END of a reshard have their own way out.
_NEVER: Final = (WriteAfterEnd,)
# Broken bytes may arrive whole the next time, and settings help against the others: they are passed
# by their GTID alone.
_BY_GTID: Final = (CorruptBinlog, RuleBroken, HiddenType)
# Transactions behind a stop that are committed one by one. Stops come in a row, and one that comes
# behind others in a batch costs another session.
CAREFUL_TRANSACTIONS: Final = 100


@dataclass(slots=True)
class SkipOrder:
    """Which stops are passed, and up to where.

    `until`: the order ends once the stream has been read up to all of these. `gtids`: only these,
    None: any. `tables`: only stops that come of these (database, table) alone, None: any.
    """

    until: GtidSet
    reason: str
    on_skip: Callable[[SkipReport], None]
    gtids: NamedGtids | None = None
    tables: frozenset[tuple[str, str]] | None = None
    passed: list[SkipReport] = field(default_factory=list)
    has_ended: bool = False
    _since: int = 0

    @property
    def is_careful(self) -> bool:
        """Whether each transaction is committed by itself, because another stop may be near."""
        return self._since < CAREFUL_TRANSACTIONS

    def committed(self, transactions: int) -> None:
        """Count what was committed since the last stop."""
        self._since += transactions

    def covers(self, gtid: str, error: DecoderHalt) -> bool:
        """Whether the transaction, which stops the shard by `error`, is to be passed."""
        if isinstance(error, _NEVER):
            return False
        if self.gtids is not None:
            return self.gtids.includes(gtid)
        if isinstance(error, _BY_GTID):
            return False
        return self.tables is None or (bool(error.tables) and self.tables >= set(error.tables))

    def add(self, report: SkipReport) -> None:
        """Note a SKIP record that was written."""
        self._since = 0
        self.passed.append(report)
        self.on_skip(report)

    def check_end(self, decoder: Decoder) -> bool:
        """Whether the stream has been read up to the order's end."""
        self.has_ended = self.has_ended or decoder.reached(str(self.until), numbers_alone=True)
        return self.has_ended
