"""Decides how a sink goes on after a restart, and whether its target holds a batch. Pure.

A target keeps from the start which stream it holds (`Origin`). Another keyspace or range would
bring rows beside those that are there, or leave some without changes; with another key scope the
rows would get other keys.

A target keeps, in the transaction that writes a batch, the id of the query, the number of the batch
and the position at which it ends. All batches are committed to it, also those without rows, so the
next one begins where the target ends, whichever query reads it. What Spark's checkpoint says comes
second: with a lost one the stream continues from the target's position, and a batch that is run
again is dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from event_token import KeyRange
from event_token.errors import UsageError
from event_token.position import StreamPosition
from sinks.errors import TargetConflict
from topics.arrow.key_scope import KeyScope


@dataclass(frozen=True, slots=True)
class HeldBatch:
    """The last batch that a target holds, and the position at which it ends."""

    query_id: str
    batch_id: int
    position: StreamPosition


@dataclass(frozen=True, slots=True)
class Applied:
    """What a sink's target holds: rows applied, and the frontier up to which it is complete.

    `frontier_us` is None where the target does not keep it: Spark's progress has it. `rejected`
    counts changes that the target could not hold and that were put aside.
    """

    rows: int
    frontier_us: int | None = None
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """A checkpoint's query, and the last batch that Spark committed, which ends at `position`.

    Both are None before the first such batch; others may be planned.
    """

    query_id: str
    last_batch: int | None = None
    position: StreamPosition | None = None


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch that a query is about to write."""

    query_id: str
    batch_id: int
    begin: StreamPosition
    end: StreamPosition


class Start(Enum):
    """Where a query starts."""

    AS_ASKED = auto()  # at the start that the user gave: there is nothing yet
    CHECKPOINT = auto()  # Spark continues
    TARGET = auto()  # at the target's position: the checkpoint is new


class BatchStep(Enum):
    """What is done with a batch."""

    APPLY = auto()
    REPLAY = auto()  # the target holds it: nothing


def start_of(where: str, target: HeldBatch | None, checkpoint: CheckpointState | None) -> Start:
    """Decide where a query starts; `where` names the target in errors.

    TargetConflict when target and checkpoint do not belong together.
    """
    committed = None if checkpoint is None else checkpoint.last_batch
    if target is None:
        if committed is not None:
            raise _no_target(where, committed)
        return Start.AS_ASKED if checkpoint is None else Start.CHECKPOINT
    if checkpoint is None:
        return Start.TARGET
    if checkpoint.query_id != target.query_id:
        if committed is None:
            return Start.TARGET
        if checkpoint.position != target.position:
            raise _other_query(where, target, checkpoint.query_id)
        return Start.CHECKPOINT
    if committed is not None and committed > target.batch_id:
        raise _behind(where, target, committed)
    if committed == target.batch_id and checkpoint.position != target.position:
        raise _restored(where, target)
    return Start.CHECKPOINT


def resumed(
    source: Mapping[str, str],
    where: str,
    target: HeldBatch | None,
    checkpoint: CheckpointState | None,
) -> dict[str, str]:
    """Return the options of a query's source, with the start that `start_of` decides."""
    start = start_of(where, target, checkpoint)
    if target is None or start is not Start.TARGET:
        return dict(source)
    return {**source, "start": target.position.to_string()}


def step_of(where: str, target: HeldBatch | None, batch: PlannedBatch) -> BatchStep:
    """Decide about a batch; the target is read in the transaction that would write the batch.

    TargetConflict when applying it would repeat changes or leave some out.
    """
    if target is None:
        if batch.batch_id > 0:
            raise _no_target(where, batch.batch_id - 1)
        return BatchStep.APPLY
    if batch.query_id != target.query_id:
        if batch.begin != target.position:
            raise _other_query(where, target, batch.query_id)
        return BatchStep.APPLY
    if batch.batch_id > target.batch_id + 1:
        raise _behind(where, target, batch.batch_id - 1)
    if batch.batch_id == target.batch_id + 1:
        if batch.begin != target.position:
            raise _restored(where, target)
        return BatchStep.APPLY
    if batch.batch_id == target.batch_id and batch.end != target.position:
        raise _restored(where, target)
    return BatchStep.REPLAY


def _no_target(where: str, batch_id: int) -> TargetConflict:
    return TargetConflict(
        f"{where} holds no batch, but the checkpoint is at batch {batch_id}: the target was "
        f"removed or moved, and a new one would lack all changes up to there. Put it back, or "
        f"remove the checkpoint to start a new one"
    )


def _other_query(where: str, target: HeldBatch, query_id: str) -> TargetConflict:
    return TargetConflict(
        f"{where} is written by query {target.query_id}, up to batch {target.batch_id} "
        f"({target.position.frontier_us} us), and query {query_id} does not continue there: stop "
        f"the other query. To continue with this one where the target ends, remove its checkpoint"
    )


def _behind(where: str, target: HeldBatch, batch_id: int) -> TargetConflict:
    return TargetConflict(
        f"{where} holds batches up to {target.batch_id} of query {target.query_id}, but the "
        f"checkpoint is at batch {batch_id}: the target was restored to an earlier state. Remove "
        f"the checkpoint to continue where the target ends"
    )


def _restored(where: str, target: HeldBatch) -> TargetConflict:
    return TargetConflict(
        f"{where} holds batch {target.batch_id} of query {target.query_id}, which ends at another "
        f"position than the checkpoint's: the checkpoint was reset or restored, or the query runs "
        f"twice. Stop the other one, and remove the checkpoint to continue where the target ends"
    )


_KEYSPACE = "shardstream.keyspace"
_KEY_RANGE = "shardstream.keyRange"
_KEY_SCOPE = "shardstream.keyScope"


@dataclass(frozen=True, slots=True)
class Origin:
    """A stream. `key_range`: as `KeyRange` writes it."""

    keyspace: str
    key_range: str = "-"
    key_scope: KeyScope = KeyScope.KEYSPACE

    def properties(self) -> dict[str, str]:
        """Return what a target keeps."""
        return {
            _KEYSPACE: self.keyspace,
            _KEY_RANGE: self.key_range,
            _KEY_SCOPE: self.key_scope.value,
        }

    def check(self, stored: Mapping[str, str], where: str) -> None:
        """TargetConflict unless a target is of this stream, or was begun without one."""
        for what, name, own in (
            ("keyspace", _KEYSPACE, self.keyspace),
            ("--key-range", _KEY_RANGE, self.key_range),
            ("--key-scope", _KEY_SCOPE, self.key_scope.value),
        ):
            found = stored.get(name, own)
            if found != own:
                raise TargetConflict(
                    f"{where} was begun with {what} {found}, and this query has {own}: continue "
                    f"with {what} {found}, or start a new target"
                )


def given_origin(options: Any) -> Origin | None:
    """Return the stream that a sink's options name, None if they name none. UsageError."""
    keyspace = options.get("keyspace")
    if keyspace is None:
        if "keyScope" in options or "keyRange" in options:
            raise UsageError("set option keyspace with keyRange and keyScope")
        return None
    scope = options.get("keyScope", KeyScope.KEYSPACE)
    if scope not in [*KeyScope]:
        raise UsageError(f"option keyScope is {scope!r}: {' or '.join(KeyScope)}")
    return Origin(keyspace, str(KeyRange.parse(options.get("keyRange", "-"))), KeyScope(scope))
