"""The statements whose messages Debezium 3.6.0 wrote, and the options of each run."""

from dataclasses import dataclass
from pathlib import Path

from sinks.table_topics.options import (
    Decimals,
    EnvelopeOptions,
    Format,
    Times,
    Unsigned,
)

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True, slots=True)
class GoldenRun:
    """Settings of Debezium's connector, and our options that mean the same."""

    connector: str
    options: EnvelopeOptions


def _options(run: str, **changes: object) -> EnvelopeOptions:
    return EnvelopeOptions("shop", run, unsigned=Unsigned.PRECISE, **changes)  # type: ignore[arg-type]


RUNS = {
    "adaptive": GoldenRun("", _options("adaptive")),
    "connect": GoldenRun(
        "time.precision.mode=connect\ndecimal.handling.mode=double\n",
        _options("connect", time=Times.CONNECT, decimal=Decimals.DOUBLE),
    ),
    "isostring": GoldenRun(
        "time.precision.mode=isostring\ndecimal.handling.mode=string\n",
        _options("isostring", time=Times.ISOSTRING, decimal=Decimals.STRING),
    ),
    "flat": GoldenRun(
        "transforms=unwrap\n"
        "transforms.unwrap.type=io.debezium.transforms.ExtractNewRecordState\n"
        "transforms.unwrap.delete.tombstone.handling.mode=rewrite-with-tombstone\n"
        "transforms.unwrap.add.fields=op,source.ts_ms\n",
        _options("flat", format=Format.FLAT_JSON),
    ),
}


def case_statements() -> tuple[str, ...]:
    """Return the statements."""
    text = (GOLDEN / "case.sql").read_text("utf-8")
    return tuple(filter(None, (statement.strip() for statement in text.split(";\n"))))
