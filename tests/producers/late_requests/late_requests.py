"""A model of requests that arrive late: a producer, its coordinator, and a network between them.

A client that loses a connection sends the request again, and the first one may still arrive. What
the broker compares is the epoch alone: which transaction a request was meant for it does not say.
Records have numbers of their own, so a late one is dropped; they are no part of this model.
"""

from collections.abc import Iterator
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from tests.producers.state_search import Violation

LOG, PROGRESS = 0, 1
# So that a transaction can be half written.
ROWS: Final = 2


class Renews(StrEnum):
    """When a client takes a new epoch before it begins a transaction."""

    NEVER = "never"
    AFTER_COMMITS = "after a commit that may have been sent twice"
    AFTER_ENDS = "after a commit or an abort that may have been sent twice"


class Kind(IntEnum):
    """The requests of which a second one may be under way."""

    INIT = 0
    ADD = 1
    COMMIT = 2
    ABORT = 3


class Request(NamedTuple):
    """A request as the broker sees it."""

    kind: Kind
    epoch: int
    partition: int = LOG


class Stage(IntEnum):
    """What the client does next."""

    INIT = 0
    READ = 1
    BEGIN = 2
    ROWS = 3
    ADD_PROGRESS = 4
    WRITE_PROGRESS = 5
    COMMIT = 6
    ABORT = 7
    DONE = 8


class Client(NamedTuple):
    """The process: its epoch, the transaction that it writes, and the rows of that so far.

    `is_spent`: its last commit, or abort, may have been sent twice.
    """

    stage: Stage = Stage.INIT
    epoch: int = 0
    transaction: int = 0
    rows: int = 0
    is_spent: bool = False


class Record(NamedTuple):
    """A record of a transaction; what is aborted is not kept."""

    transaction: int
    is_committed: bool = False


class State(NamedTuple):
    """The whole system at a moment.

    `open_in`: the partitions of the coordinator's transaction. `is_aborted`: how the one before
    that has ended. `aborts`: transactions that the client still gives up half-way. `late`: requests
    that have been sent again, and may arrive. `resends`: how many may still be sent twice.
    """

    client: Client
    epoch: int
    open_in: frozenset[int]
    is_aborted: bool
    partitions: tuple[tuple[Record, ...], tuple[Record, ...]]
    aborts: int
    late: tuple[Request, ...]
    resends: int


class Setting(NamedTuple):
    """What a search begins with: transactions to commit, attempts to abort, requests sent twice."""

    resends: int
    transactions: int = 2
    aborts: int = 0


Step = tuple[str, State]


class LateRequests:
    """A setting, and when the client takes a new epoch."""

    takeover = "init"

    def __init__(self, setting: Setting, renews: Renews) -> None:
        self._setting = setting
        self._renews = renews

    def beginning(self) -> State:
        """Before the client's first request."""
        setting = self._setting
        empty: tuple[tuple[Record, ...], tuple[Record, ...]] = ((), ())
        return State(Client(), 0, frozenset(), False, empty, setting.aborts, (), setting.resends)

    def steps(self, state: State) -> Iterator[Step]:
        """What the client does; a late request arrives in `disturbances`."""
        request = self._request(state)
        if request is not None:
            yield request.kind.name.lower(), self._answered(state, request)
        else:
            yield from self._local(state)

    def _request(self, state: State) -> Request | None:
        """The request that the client sends next, if it does."""
        client = state.client
        if client.stage is Stage.INIT:
            return Request(Kind.INIT, 0)
        if client.stage is Stage.BEGIN and not client.is_spent:
            return Request(Kind.ADD, client.epoch, LOG)
        if client.stage is Stage.ADD_PROGRESS:
            return Request(Kind.ADD, client.epoch, PROGRESS)
        if client.stage is Stage.COMMIT:
            return Request(Kind.COMMIT, client.epoch)
        if client.stage is Stage.ABORT:
            return Request(Kind.ABORT, client.epoch)
        return None

    def _local(self, state: State) -> Iterator[Step]:
        client, stage = state.client, state.client.stage
        if stage is Stage.READ:
            committed = _committed(state, PROGRESS)
            _check_agree(state)
            done = committed == self._setting.transactions
            after = Client(Stage.DONE if done else Stage.BEGIN, state.client.epoch, committed)
            yield "read", state._replace(client=after)
        elif stage is Stage.BEGIN:
            yield "renew", state._replace(client=Client())
        elif stage is Stage.ROWS:
            yield "row", self._written(state, LOG, client.rows + 1, self._after_row(client.rows))
            if state.aborts and client.rows:
                aborting = client._replace(stage=Stage.ABORT)
                yield "give up", state._replace(client=aborting, aborts=state.aborts - 1)
        elif stage is Stage.WRITE_PROGRESS:
            yield "progress", self._written(state, PROGRESS, client.rows, Stage.COMMIT)

    def _after_row(self, rows: int) -> Stage:
        return Stage.ADD_PROGRESS if rows + 1 == ROWS else Stage.ROWS

    def _written(self, state: State, partition: int, rows: int, stage: Stage) -> State:
        """Write a record; brokers refuse one that is in no transaction, and the session ends."""
        client = state.client
        if client.epoch != state.epoch or partition not in state.open_in:
            return state._replace(client=Client())
        records = (*state.partitions[partition], Record(client.transaction))
        after = client._replace(stage=stage, rows=rows)
        return _with(state, partition, records)._replace(client=after)

    def _answered(self, state: State, request: Request) -> State:
        """The broker takes a request, and the client its answer; an error ends the session."""
        after = _taken(state, request)
        client = state.client
        if request.kind is Kind.INIT:
            return after._replace(client=Client(Stage.READ, after.epoch))
        if request.epoch != state.epoch:
            return state._replace(client=Client())
        if request.kind is Kind.ADD:
            stage = Stage.ROWS if request.partition == LOG else Stage.WRITE_PROGRESS
            return after._replace(client=client._replace(stage=stage))
        is_ended = not state.open_in and state.is_aborted == (request.kind is Kind.ABORT)
        if not state.open_in and not is_ended:
            return state._replace(client=Client())  # INVALID_TXN_STATE
        number = client.transaction + (request.kind is Kind.COMMIT)
        done = number == self._setting.transactions
        stage = Stage.DONE if done else Stage.BEGIN
        return after._replace(client=Client(stage, client.epoch, number, 0, client.is_spent))

    def disturbances(self, state: State) -> Iterator[Step]:
        """A request is sent twice, or the first one of two arrives at last."""
        request = self._request(state)
        if request is not None and state.resends:
            # The second one is answered, the first one is still under way.
            after = self._answered(state, request)
            late = tuple(sorted((*state.late, request)))
            is_spent = after.client.is_spent or self._is_noted(request.kind)
            client = after.client
            if client.stage is not Stage.INIT:
                client = client._replace(is_spent=is_spent)
            label = f"{request.kind.name.lower()}, sent twice"
            yield label, after._replace(client=client, late=late, resends=state.resends - 1)
        for request in set(state.late):
            left = list(state.late)
            left.remove(request)
            label = f"late {request.kind.name.lower()}"
            yield label, _taken(state, request)._replace(late=tuple(left))

    def _is_noted(self, kind: Kind) -> bool:
        noted = {
            Renews.NEVER: frozenset[Kind](),
            Renews.AFTER_COMMITS: frozenset({Kind.COMMIT}),
            Renews.AFTER_ENDS: frozenset({Kind.COMMIT, Kind.ABORT}),
        }
        return kind in noted[self._renews]

    def check(self, state: State) -> None:
        """What is visible is whole transactions with their progress."""
        _check_agree(state)

    def check_rest(self, state: State) -> None:
        """All transactions are in the log."""
        if _committed(state, PROGRESS) != self._setting.transactions:
            raise Violation("transactions are missing")


def _taken(state: State, request: Request) -> State:
    """What a request does, whenever it arrives."""
    if request.kind is Kind.INIT:  # of a client without an epoch: it ends what is open
        ended = _ended(state, is_commit=False) if state.open_in else state
        return ended._replace(epoch=state.epoch + 1)
    if request.epoch != state.epoch:
        return state
    if request.kind is Kind.ADD:
        return state._replace(open_in=state.open_in | {request.partition})
    if not state.open_in:
        return state
    return _ended(state, is_commit=request.kind is Kind.COMMIT)


def _ended(state: State, *, is_commit: bool) -> State:
    """Write the markers."""
    for partition in state.open_in:
        records = state.partitions[partition]
        if is_commit:
            records = tuple(record._replace(is_committed=True) for record in records)
        else:
            records = tuple(record for record in records if record.is_committed)
        state = _with(state, partition, records)
    return state._replace(open_in=frozenset(), is_aborted=not is_commit)


def _with(state: State, partition: int, records: tuple[Record, ...]) -> State:
    log, progress = state.partitions
    return state._replace(partitions=(records, progress) if partition == LOG else (log, records))


def _committed(state: State, partition: int) -> int:
    return sum(record.is_committed for record in state.partitions[partition])


def _check_agree(state: State) -> None:
    rows, progress = _committed(state, LOG), _committed(state, PROGRESS)
    if rows > ROWS * progress:
        raise Violation("rows without their progress")
    if rows < ROWS * progress:
        raise Violation("progress without its rows")
