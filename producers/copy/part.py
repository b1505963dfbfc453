"""Reads the next part of a table, and checks in the same transaction that its cursor holds."""

import time
from collections.abc import Callable

from databases.table_cursor import TableCursor, table_identity
from producers.copy.chunk import ChunkConnection, ChunkRows, TablePart
from producers.copy.definition import TableDefinition, held_definition
from producers.settings import ShardProducerSettings


def read_part(
    chunks: ChunkConnection,
    settings: ShardProducerSettings,
    name: tuple[str, str],
    after: TableCursor | None,
    read: Callable[[TableDefinition], tuple[ChunkRows, bool]],
    *,
    is_resumed: bool,
) -> TablePart:
    """Read in the transaction that is open; no definition of the table comes between.

    `read` returns the rows, and whether the table ends with them. `is_resumed`: whoever asks has
    not read this table from this server before. CannotCopy; TableChanged if the cursor is of
    another table, or of another definition.
    """
    text = ".".join(name)
    definition = held_definition(chunks.connection, settings, *name)
    if after is not None:
        after.check_definition(text, definition.fingerprint)
    began_s = time.monotonic()
    rows, is_last = read(definition)
    elapsed_s = time.monotonic() - began_s
    identity: tuple[str, ...] = ()
    # Views of InnoDB go through all tables of a server, so they are asked at both ends of what is
    # read, and not for a table that fits into one part.
    if (is_resumed or is_last) and not (after is None and is_last):
        identity = table_identity(chunks.connection, settings.flavor, *name)
        if after is not None:
            after.check_identity(text, identity)
    return TablePart(definition, rows, is_last, elapsed_s, identity)
