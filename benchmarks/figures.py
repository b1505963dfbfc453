"""Computes figures from raw samples. Pure."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

from event_token.errors import Halt

# The part of a drain that counts: not a JVM's start, not the last half-full batch.
STEADY_FROM = 0.2
STEADY_TO = 0.9
# Of the 70 % between them; with less, one late sample would determine the rate.
STEADY_SHARE_MIN = 0.35
PER_MESSAGES = 100_000


@dataclass(frozen=True, slots=True)
class Sample:
    """What had been done at a moment, and the CPU time that the process had used by then.

    `done` counts messages, offsets or bytes.
    """

    at_s: float
    done: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Turn:
    """The raw figures of one turn: ours, and the peer's taken right after it (None: no peer)."""

    ours: float
    theirs: float | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result: medians over the turns."""

    name: str
    unit: str
    ours: float
    peer: str | None
    theirs: float | None
    ratio: float | None
    runs: list[Turn] = field(default_factory=list)

    def to_json_dict(self) -> dict[str, object]:
        """Return the line for the result file."""
        return asdict(self)


def figure(name: str, unit: str, turns: Sequence[Turn], *, peer: str | None = None) -> Figure:
    """Summarise the turns by medians; the ratio is the median of ours / theirs within a turn.

    The machine's speed varies by half between turns, and far less within one.
    Raises ValueError if there is no turn, or if a peer's figures are missing.
    """
    if not turns:
        message = f"{name}: no run"
        raise ValueError(message)
    theirs = [turn.theirs for turn in turns if turn.theirs is not None]
    if len(theirs) != (len(turns) if peer is not None else 0):
        message = f"{name}: {len(turns)} runs with {len(theirs)} figures of peer {peer}"
        raise ValueError(message)
    ours = median(turn.ours for turn in turns)
    if peer is None:
        return Figure(name, unit, round_sig(ours), None, None, None, _rounded(turns))
    their_median = median(theirs)
    ratios = [turn.ours / turn.theirs for turn in turns if turn.theirs]
    ratio = round_sig(median(ratios)) if len(ratios) == len(turns) else None
    return Figure(
        name, unit, round_sig(ours), peer, round_sig(their_median), ratio, _rounded(turns)
    )


def _rounded(turns: Sequence[Turn]) -> list[Turn]:
    return [
        Turn(round_sig(t.ours), None if t.theirs is None else round_sig(t.theirs)) for t in turns
    ]


def round_sig(value: float, digits: int = 4) -> float:
    """Round to the significant digits; more would be noise."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


@dataclass(frozen=True, slots=True)
class DrainRates:
    """A drain: its steady rate, its rate from process start to last commit, its processor time."""

    steady_per_s: float
    whole_per_s: float
    cpu_s_per_100k: float


def drain_rates(samples: Sequence[Sample], *, messages: int, started_at_s: float) -> DrainRates:
    """Compute a drain's rates from samples of what was done.

    `samples` are in order of time; the last one is the first that saw everything done. Their
    counts are scaled to `messages`. Raises Halt if they do not determine a rate.
    """
    total = samples[-1].done if samples else 0
    if total <= 0 or len(samples) < 2:
        message = f"{len(samples)} samples of a drain, {total:.0f} done at last: that tells no rate"
        raise Halt(message)
    begin = next(sample for sample in samples if sample.done >= total * STEADY_FROM)
    end = next(sample for sample in samples if sample.done >= total * STEADY_TO)
    # Progress comes in steps (commits), and a sample is at the end of one: the steps between the
    # two samples are counted, and nothing is interpolated.
    share = (end.done - begin.done) / total
    if share < STEADY_SHARE_MIN:
        message = (
            f"of a drain of {messages} messages the samples between {STEADY_FROM:.0%} and "
            f"{STEADY_TO:.0%} show {share:.0%}: it came in too few steps to tell a rate"
        )
        raise Halt(message)
    steady_messages = messages * share
    return DrainRates(
        steady_per_s=steady_messages / (end.at_s - begin.at_s),
        whole_per_s=messages / (samples[-1].at_s - started_at_s),
        cpu_s_per_100k=(end.cpu_s - begin.cpu_s) * PER_MESSAGES / steady_messages,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile. Raises ValueError if there are no values."""
    if not values:
        message = "no values, so no percentile"
        raise ValueError(message)
    ordered = sorted(values)
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[max(rank, 1) - 1]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch of a streaming query: when it began, how long it took, its rows."""

    start_s: float
    duration_s: float
    rows: int


def micro_batch_rate(batches: Sequence[MicroBatch], *, rows: int) -> float:
    """Return rows per second from the second batch's start to the last one's end.

    The first batch also starts the query's processes. Raises Halt if the batches do not have
    exactly `rows` rows, or if there is only one.
    """
    with_rows = [batch for batch in batches if batch.rows > 0]
    found = sum(batch.rows for batch in with_rows)
    if found != rows:
        message = f"the query read {found} rows, the log holds {rows}"
        raise Halt(message)
    if len(with_rows) < 2:
        message = (
            f"{len(with_rows)} micro-batch of {rows} rows gives no steady rate: use smaller ones"
        )
        raise Halt(message)
    steady = with_rows[1:]
    took_s = steady[-1].start_s + steady[-1].duration_s - steady[0].start_s
    return sum(batch.rows for batch in steady) / took_s
