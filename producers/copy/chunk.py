"""A chunk of a table: what to read, and what was read. Plain values."""

from dataclasses import dataclass
from typing import Final

from databases.mariadb_snapshot import Place
from producers.copy.definition import TableDefinition

# A chunk stays in memory until the log has reached it.
CHUNK_BYTES_MAX: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ChunkJob:
    """What to read. `position`: a GTID set that the SELECT must see completely.

    `after`: literals of the key after which the chunk begins, empty for the table's beginning.
    `key`: names of the key's columns, empty before the first chunk.
    """

    database: str
    table: str
    where: str
    key: tuple[str, ...]
    after: tuple[str, ...]
    rows_max: int
    position: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows in key order as binlog row images; the last key as SQL literals, and as text."""

    images: bytes
    rows: int
    last_key: tuple[str, ...]
    last_key_text: dict[str, str]


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """The rows of a chunk."""

    pieces: list[Piece]
    rows: int
    bytes_read: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk and the point in time that it shows.

    `high`: what the server had executed after the read; the log must reach that. `snapshot`: on
    MariaDB the binlog position of the read, which must be the exact end of a transaction; None if
    the read saw all of the job's position.
    """

    definition: TableDefinition
    rows: ChunkRows
    is_last: bool
    elapsed_s: float
    high: str
    snapshot: Place | None
    rows_estimated: int
