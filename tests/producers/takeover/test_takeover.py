"""What the model of takeovers shows: who wins, that it ends, and that each rule is needed."""

from typing import Final

import pytest

from tests.producers.state_search import Found, Search
from tests.producers.takeover.takeover import Faults, Rules, Setting, Takeovers

SETTINGS: Final = {
    "one alone": Setting(Faults(unknown=2, others=1), processes=1, rows=2),
    "a takeover": Setting(Faults(unknown=2, others=1), rows=2),
    "deaths": Setting(Faults(unknown=1, deaths=2, restarts=1)),
    "two starts at once": Setting(Faults(unknown=1), processes=3),
    "two starts at once and a death": Setting(Faults(unknown=1, deaths=1), processes=3),
}
LARGE: Final = {"two starts at once", "two starts at once and a death"}

LEFT_OUT: Final = {
    "fences after any error": (Rules(looks=False), "a takeover", "no rest"),
    "looks once": (Rules(keeps_looking=False), "a takeover", "without end"),
    "ends where it is fenced": (Rules(returns=False), "a takeover", "started last has ended"),
    "ends where somebody has claimed": (Rules(waits=False), "deaths", "no producer"),
    "takes a slow one for dead": (Rules(is_patient=False), "a takeover", "started last has ended"),
    "fences after any error and ends where it is fenced": (
        Rules(looks=False, returns=False),
        "a takeover",
        "started last has ended",
    ),
}


def search(setting: Setting, rules: Rules = Rules()) -> int:  # noqa: B008 - frozen
    """Search every state; return the takeovers until rest from the worst of them."""
    searched = Search(Takeovers(setting, rules))
    takeovers = searched.everything().takeovers
    searched.check_ends()
    return takeovers


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.full] * (name in LARGE)) for name in SETTINGS],
)
def test_the_one_started_last_wins_and_no_two_take_turns(name: str) -> None:
    """Every interleaving of calls, unknown answers and deaths ends, with each row logged once."""
    setting = SETTINGS[name]

    # Left alone, each process fences once, and the last one once more.
    assert search(setting) <= setting.processes + 1


@pytest.mark.parametrize("rule", LEFT_OUT)
def test_each_rule_is_needed(rule: str) -> None:
    """A process that does not keep the rule breaks a property in some state."""
    rules, setting, broken = LEFT_OUT[rule]

    with pytest.raises(Found, match=broken):
        search(SETTINGS[setting], rules)
