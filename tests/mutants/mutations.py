"""Small changes of a module's source, one at a time, each of which a test should notice."""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}
_SWAPPED_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
# Whose first two arguments may change places, or fail at once if they do.
_SYMMETRIC = {"min", "max", "isinstance", "getattr", "cast"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of a module. `line` is the line in the original, `change` says what is changed.

    `function`: the dotted name of the class and the function that it stands in, "" outside of all.
    `times`: 1 for the first such change there, 2 for the second: they do not move with the lines.
    """

    line: int
    change: str
    function: str
    times: int
    # The node with the number `node` of a walk through the tree is replaced.
    node: int
    replacement: ast.AST


def mutants_of(source: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of its source.

    Texts, annotations, decorators and what `raise` says are left alone.
    """
    tree = ast.parse(source)
    functions = dict(_functions(tree, ""))
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for number, node in enumerate(_changeable(tree)):
        for replacement in _replacements(node):
            before, after = (_in_one_line(each) for each in (node, replacement))
            if before == after:
                continue
            change, function = f"{before} -> {after}", functions[node]
            seen[function, change] += 1
            line, times = getattr(node, "lineno", 0), seen[function, change]
            found.append(Mutant(line, change, function, times, number, replacement))
    return sorted(found, key=lambda mutant: mutant.line)


def changed(source: str, mutant: Mutant) -> str:
    """Return the source with a mutant of it."""
    tree = ast.parse(source)
    target = next(node for number, node in enumerate(_changeable(tree)) if number == mutant.node)
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, name, mutant.replacement)
            elif isinstance(value, list) and any(each is target for each in value):
                replaced = [mutant.replacement if each is target else each for each in value]
                setattr(parent, name, replaced)
    return ast.unparse(ast.fix_missing_locations(tree))


def _functions(node: ast.AST, name: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield each node with the dotted name of the class and the function that runs it."""
    yield node, name
    inside = name
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        inside = f"{name}.{node.name}".removeprefix(".")
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                # Defaults and decorators are evaluated where the function is defined.
                yield from _functions(child, inside if field == "body" else name)


def _in_one_line(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


def _changeable(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that decide what a module does, always in the same order."""
    yield tree
    for name, value in ast.iter_fields(tree):
        if _is_left_alone(tree, name):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_text(child):
                yield from _changeable(child)


def _is_left_alone(node: ast.AST, field: str) -> bool:
    return field in {"annotation", "returns", "decorator_list", "bases"} or (
        isinstance(node, ast.Raise | ast.ImportFrom | ast.Import)
    )


def _is_text(node: ast.AST) -> bool:
    """Whether the node is text for people: an f-string or a docstring."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def _replacements(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for at, op in enumerate(ops):
                changed = [*ops[:at], _COMPARISONS[type(op)](), *ops[at + 1 :]]
                yield ast.Compare(left, changed, comparators)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            yield ast.BinOp(left, _OPERATORS[type(op)](), right)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Name(id=name, ctx=context) if name in _SWAPPED_NAMES:
            yield ast.Name(_SWAPPED_NAMES[name], context)
        case ast.Call(func=func, args=[first, second, *rest], keywords=keywords) if not (
            isinstance(first, ast.Starred)
            or isinstance(second, ast.Starred)
            or (isinstance(func, ast.Name) and func.id in _SYMMETRIC)
        ):
            yield ast.Call(func, [second, first, *rest], keywords)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Break() | ast.Continue():
            yield ast.Pass()
        case _:
            pass
