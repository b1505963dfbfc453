"""What the profiles measure, as the table that is printed at the end of a run."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pytest

STEPS: Final = (
    "start",
    "copy",
    "stream",
    "kill",
    "failover",
    "reshard",
    "credentials",
    "large row",
)
PROFILES: Final = (
    "rds-mysql",
    "rds-mariadb",
    "aurora-mysql",
    "cloudsql",
    "azure-mysql",
    "msk-serverless",
    "confluent-basic",
    "confluent-dedicated",
    "kafka-3.5",
    "few settings",
)
# Names in the reports of tests.
_MEASURED: Final = "measured"
_REFUSED: Final = "refused"
# pytest's own fixture: a name, and what plain types can hold.
RecordProperty = Callable[[str, object], None]


def measured(record: RecordProperty, profile: str, changes: int, *steps: str) -> None:
    """Note that a profile went through `steps`, with the number of changes, none lost or repeated.

    Called behind the checks that show it.
    """
    assert profile in PROFILES, profile
    assert set(steps) <= set(STEPS), steps
    record(_MEASURED, [profile, list(steps), f"0 of {changes:,}"])


def refused(record: RecordProperty, profile: str, text: str) -> None:
    """Note what a person reads whose server is not set for a stream."""
    record(_REFUSED, [profile, text])


def lines(reports: Iterable[pytest.TestReport]) -> Iterator[str]:
    """The table, and what is refused below it; nothing where nothing was measured. Pure.

    A cell without a number was not tried in this run, or its test has failed.
    """
    found: list[tuple[str, Any]] = [e for report in reports for e in report.user_properties]
    cells: dict[tuple[str, str], str] = {}
    for profile, steps, text in (value for name, value in found if name == _MEASURED):
        cells |= {(profile, step): text for step in steps}
    if cells:
        yield f"| lost or repeated | {' | '.join(STEPS)} |"
        yield "|---" * (len(STEPS) + 1) + "|"
    for profile in PROFILES if cells else ():
        row = (cells.get((profile, step), "") for step in STEPS)
        yield f"| {profile} | {' | '.join(row)} |"
    for profile, text in (value for name, value in found if name == _REFUSED):
        yield f"{profile} is refused: {text}"
