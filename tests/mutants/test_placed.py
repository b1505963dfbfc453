"""The list of mutants that make no difference, and how a mutant takes its module's place."""

import sys
from types import ModuleType

import pytest

from tests.mutants.changed_module import change_in_place
from tests.mutants.mutations import mutants_of
from tests.mutants.placed import Placed, equivalent, mutants_in
from tests.mutants.targets import TARGETS

SOURCE = """
from functools import cache

LIMIT = 1

def free(default=1):
    return 1

class Class:
    LIMIT = 1

    @property
    def kept(self):
        return 1

    @classmethod
    def of(cls):
        return [1 for _ in "x"][0]

@cache
def remembered():
    def inside():
        return 1

    return inside()
"""


def test_each_excused_mutant_exists_and_has_a_reason() -> None:
    """An entry that no longer names a mutant would hide nothing but mistakes."""
    names = {placed.name for target in TARGETS.values() for placed in mutants_in(target)}
    excused = equivalent()

    assert excused
    assert not excused.keys() - names
    assert all(excused.values())


def test_names_tell_all_mutants_apart() -> None:
    """The second of two like changes in one function has a number."""
    for target in TARGETS.values():
        names = [placed.name for placed in mutants_in(target)]

        assert len(set(names)) == len(names)


def test_a_function_s_mutant_is_seen_by_who_has_imported_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Functions, methods, properties and what decorators wrap change where they are known."""
    answers = {}
    for mutant in mutants_of(SOURCE):
        if mutant.change != "1 -> 2":
            continue
        module = ModuleType("changed_in_place")
        exec(compile(SOURCE, "changed_in_place", "exec"), vars(module))  # noqa: S102 - ours
        monkeypatch.setitem(sys.modules, "changed_in_place", module)
        free, kind, remembered = module.free, module.Class, module.remembered
        is_done = change_in_place(Placed("x.py", "changed_in_place", SOURCE, mutant)) is not None
        answers[mutant.function] = (is_done, free(), kind().kept, kind.of(), remembered())

    assert answers == {
        "": (False, 1, 1, 1, 1),
        "Class": (False, 1, 1, 1, 1),
        "free": (True, 2, 1, 1, 1),
        "Class.kept": (True, 1, 2, 1, 1),
        "Class.of": (True, 1, 1, 2, 1),
        "remembered.inside": (True, 1, 1, 1, 2),
    }
