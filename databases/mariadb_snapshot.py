"""The place in the binlog that a consistent snapshot of MariaDB shows."""

from collections.abc import Iterable
from typing import Any, Final

START_SNAPSHOT: Final = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
# Within a snapshot it shows the snapshot's own place, to any account. Another session's SHOW STATUS
# can change what this one shows, so it is asked before and after the read.
SHOW_PLACE: Final = "SHOW STATUS LIKE 'binlog_snapshot_%'"

# File and offset of a binlog.
Place = tuple[str, int]


def snapshot_place(found: Iterable[tuple[Any, ...]]) -> Place:
    """The place in the rows of SHOW_PLACE; ("", 0) on a server without a binlog. Pure."""
    values = {str(name).lower(): value for name, value in found}
    return (
        str(values.get("binlog_snapshot_file", "")),
        int(values.get("binlog_snapshot_position", 0)),
    )
