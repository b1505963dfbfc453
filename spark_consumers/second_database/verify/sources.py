"""What a comparison needs of the source's shards."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from event_token import GtidSet
from spark_consumers.decoding.record_decoder import RecordDecoder

Name = tuple[str, str]  # database, table
Key = tuple[object, ...]  # values of a primary key, as the target's driver returns them


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a table in the order of its key.

    `rows`: READ records, with the columns that `changes_of` takes. `upto`: the last key as SQL
    literals of the source, empty at the table's end.
    """

    rows: pa.Table
    upto: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Rows of one consistent read.

    The read sees all transactions of `seen`, and none that `executed` lacks.
    """

    rows: pa.Table
    seen: GtidSet
    executed: GtidSet


class ShardSource(Protocol):
    """Reads tables of one shard as its producer would log them."""

    @property
    def shard(self) -> str:
        """The shard's name."""

    @property
    def decoder(self) -> RecordDecoder:
        """Decodes the records that are read."""

    def estimated_rows(self, table: Name) -> int | None:
        """Return about how many rows a table has; None if the account sees no such table."""

    def part(self, table: Name, after: tuple[str, ...]) -> Part:
        """Return the rows after a key (literals, empty: from the beginning)."""

    def rows_of(self, table: Name, keys: Sequence[Key]) -> Snapshot:
        """Return the rows that have one of these primary keys."""

    def logged_seq(self, executed: GtidSet) -> int | None:
        """Return a seq up to which the shard's log holds `executed`; None: not logged yet."""
