"""What counts as a mutant of a module."""

import ast

from tests.mutants.mutations import changed, mutants_of

SOURCE = '''"""Docstring."""
LIMIT: Final = 10


def check(value: int, low: int) -> bool:
    """Docstring."""
    if not value < low and value != 0:
        raise ValueError(f"{value} is below {low + 1}")
    note(value, low)
    note(low, low)
    return value + 1 > min(low, LIMIT)
'''


def test_each_thing_that_a_module_decides_is_changed_once() -> None:
    """Comparisons, operators, constants, arguments and statements; no texts, no annotations."""
    changes = [(mutant.line, mutant.change) for mutant in mutants_of(SOURCE)]

    assert changes == [
        (2, "10 -> 11"),
        (7, "not value < low and value != 0 -> not value < low or value != 0"),
        (7, "not value < low -> value < low"),
        (7, "value < low -> value <= low"),
        (7, "value != 0 -> value == 0"),
        (7, "0 -> 1"),
        (8, "raise ValueError(f'{value} is below {low + 1}') -> pass"),
        (9, "note(value, low) -> pass"),
        (9, "note(value, low) -> note(low, value)"),
        (10, "note(low, low) -> pass"),
        (11, "value + 1 > min(low, LIMIT) -> value + 1 >= min(low, LIMIT)"),
        (11, "value + 1 -> value - 1"),
        (11, "1 -> 2"),
        (11, "min -> max"),
    ]


def test_each_mutant_differs_from_the_others_and_compiles() -> None:
    """None is the module itself, and all of them are modules."""
    sources = [changed(SOURCE, mutant) for mutant in mutants_of(SOURCE)]

    assert len({ast.unparse(ast.parse(SOURCE)), *sources}) == len(sources) + 1
    for source in sources:
        compile(source, "mutant", "exec")
