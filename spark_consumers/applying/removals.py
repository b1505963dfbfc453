"""Which rows a TRUNCATE or DROP removes, in bulk. Pure."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.changes import HOME, SEQ, SHARD, TIME, TOKEN
from spark_consumers.applying.homes import Decision, Version, decide, range_of
from spark_consumers.applying.tables import Removal

Flags = npt.NDArray[np.bool_]


def home_bounds(shard: str) -> tuple[bytes, bytes | None]:
    """Return the first keyspace id of a shard, and the first one after it (None: no end).

    Ids compare with them as bytes.
    """
    # Trailing zero bytes of bounds are insignificant.
    key_range = range_of(shard)
    return key_range.start.rstrip(b"\0"), key_range.end.rstrip(b"\0") if key_range.end else None


def removed(removals: Iterable[Removal], rows: pa.Table) -> pa.Array:
    """Tell of each row whether one of the statements removed it.

    `rows`: columns _home, _shard, _seq, _time_us, and _token where it is kept. A row goes if the
    statement is newer, and both are of one shard, wherever the row's home is; or the key ranges of
    both shards overlap, as after a reshard, and the home lies in that of the statement's shard.
    """
    gone: Flags = np.zeros(rows.num_rows, np.bool_)
    for removal in removals:
        gone |= _removed_by(removal.at, rows)
    return pa.array(gone)


def _removed_by(statement: Version, rows: pa.Table) -> Flags:
    shard = rows[SHARD].combine_chunks()
    is_same_log = _flags(pc.equal(shard, statement.shard))
    time_us, seq = rows[TIME].to_numpy(), rows[SEQ].to_numpy()
    is_before = (time_us < statement.timestamp_us) | (
        (time_us == statement.timestamp_us) & _flags(pc.less(shard, statement.shard))
    )
    gone: Flags = np.where(is_same_log, seq < statement.seq, is_before)
    gone &= is_same_log | _is_in_range(statement.shard, rows)
    if TOKEN in rows.column_names:
        _keep_newer(statement, rows, gone, gone & ~is_same_log)
    return gone


def _is_in_range(shard: str, rows: pa.Table) -> Flags:
    home = rows[HOME].combine_chunks()
    lower, upper = home_bounds(shard)
    within = pc.greater_equal(home, pa.scalar(lower, home.type))
    if upper is not None:
        within = pc.and_(within, pc.less(home, pa.scalar(upper, home.type)))
    own = range_of(shard)
    shards = rows[SHARD].combine_chunks()
    overlapping = [s for s in pc.unique(shards).to_pylist() if own.overlaps(range_of(s))]
    is_near = pc.is_in(shards, value_set=pa.array(overlapping, pa.string()))
    return _flags(pc.and_(is_near, pc.fill_null(within, True)))


def _keep_newer(statement: Version, rows: pa.Table, gone: Flags, doubtful: Flags) -> None:
    """Between two logs the tokens decide."""
    for i in np.flatnonzero(doubtful):
        token = rows[TOKEN][i].as_py()
        version = Version(
            rows[SHARD][i].as_py(), rows[SEQ][i].as_py(), rows[TIME][i].as_py(), None, None, token
        )
        gone[i] = token is None or decide(version, statement) is Decision.APPLY


def _flags(flags: pa.Array) -> Flags:
    return np.array(flags.to_numpy(zero_copy_only=False), dtype=np.bool_)
