"""Parses the WHERE of a filter rule into a small tree of what rules may contain.

sqlglot parses the text. Any node that is not known here, and any unexpected part of a known node,
is refused by name: a rule that means something else to the server would give a wrong stream.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from event_token import KeyRange
from producers.filters.conditions import (
    AllOf,
    AnyOf,
    Between,
    ColumnRef,
    Compare,
    Condition,
    In,
    InKeyRange,
    IsNull,
    Like,
    Literal,
    Not,
    RuleError,
)
from topics.keyspace.vindexes import vindex_named

# Nobody writes longer texts, and sqlglot parses by recursion.
TEXT_CHARS_MAX: Final = 10_000
_NUMBER: Final = re.compile(r"[0-9]*\.?[0-9]+|[0-9]+\.")
_FLOAT: Final = re.compile(r"([0-9]*\.?[0-9]+|[0-9]+\.)[eE][+-]?[0-9]+")
_OPERATORS: Final[dict[type[exp.Expression], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_KEY_RANGE_FUNCTION: Final = "in_keyrange"


def parse_where(text: str) -> Condition:
    """Return the tree of a WHERE. RuleError says what in it is not supported."""
    if len(text) > TEXT_CHARS_MAX:
        raise RuleError(f"the WHERE has {len(text)} characters, more than {TEXT_CHARS_MAX}")
    if "\\" in text:
        raise RuleError(
            "the WHERE has a backslash, whose meaning depends on the sql_mode: write it without "
            "one, and LIKE with ESCAPE '|'"
        )
    try:
        _check_tokens(text)
        tree: Any = sqlglot.parse_one(text, dialect="mysql", into=exp.Condition)
        return _condition(tree)
    except SqlglotError as error:
        reason = str(error).splitlines()[0]
        raise RuleError(f"the WHERE cannot be parsed: {reason}") from error
    except RecursionError as error:
        raise RuleError("the WHERE is nested too deeply") from error


def _check_tokens(text: str) -> None:
    """Refuse tokens that servers may read in another way than sqlglot does."""
    for token in sqlglot.tokenize(text, dialect="mysql"):
        if token.comments:
            raise RuleError("the WHERE has a comment: remove it")
        if token.text == "||" or (token.text == "!" and text[token.start] == "!"):
            word = "OR" if token.text == "||" else "NOT"
            raise RuleError(f"the WHERE has {token.text!r}: write {word}")
        if token.text and text[token.start] == '"':
            raise RuleError("the WHERE has text in \"quotes\": write it in 'quotes'")


def _condition(node: exp.Expression) -> Condition:
    match node:
        case exp.Paren():
            return _condition(_only(node, "this")["this"])
        case exp.And() | exp.Or():
            terms = tuple(_condition(term) for term in _flat(node))
            return AllOf(terms) if isinstance(node, exp.And) else AnyOf(terms)
        case exp.Not():
            return Not(_condition(_only(node, "this")["this"]))
        case exp.Is():
            return _is(node)
        case exp.In():
            parts = _only(node, "this", "expressions")
            literals = tuple(_literal(each) for each in parts.get("expressions") or ())
            if not literals:
                raise _not_understood(node)
            return In(_column(parts["this"]), literals)
        case exp.Between():
            parts = _only(node, "this", "low", "high")
            return Between(_column(parts["this"]), _literal(parts["low"]), _literal(parts["high"]))
        case exp.Like() | exp.Escape():
            return _like(node)
        case exp.Anonymous():
            return _in_key_range(node)
        case _ if type(node) in _OPERATORS:
            return _compare(node)
        case _:
            raise _not_understood(node)


def _only(node: exp.Expression, *names: str) -> dict[str, Any]:
    """Return a node's parts; refuse any others."""
    parts = {name: part for name, part in node.args.items() if part not in (None, [], False)}
    if parts.keys() - set(names):
        raise _not_understood(node)
    return parts


def _flat(node: exp.Expression) -> Iterator[exp.Expression]:
    """Yield the terms of a chain of one connector, left to right, without recursion."""
    rest = [node]
    while rest:
        each = rest.pop()
        if type(each) is type(node):
            parts = _only(each, "this", "expression")
            rest += [parts["expression"], parts["this"]]
        else:
            yield each


def _compare(node: exp.Expression) -> Compare:
    parts = _only(node, "this", "expression")
    operator = _OPERATORS[type(node)]
    left, right = parts["this"], parts["expression"]
    if not _is_column(left):
        left, right = right, left
        operator = _MIRRORED.get(operator, operator)
    column = _column(left)
    if isinstance(right, exp.Collate):
        inner = _only(right, "this", "expression")
        if column.collation is not None:
            raise _not_understood(node)
        column = ColumnRef(column.name, inner["expression"].name.lower())
        right = inner["this"]
    return Compare(operator, column, _literal(right))


def _is(node: exp.Expression) -> IsNull:
    parts = _only(node, "this", "expression")
    if not isinstance(parts["expression"], exp.Null):
        raise _not_understood(node)
    column = _column(parts["this"])
    if column.collation is not None:
        raise _not_understood(node)
    return IsNull(column)


def _like(node: exp.Expression) -> Condition:
    escape = ""
    if isinstance(node, exp.Escape):
        parts = _only(node, "this", "expression")
        literal = _literal(parts["expression"])
        if literal.kind != "text" or len(literal.text) != 1:
            raise RuleError(f"ESCAPE takes one character, not {literal.text!r}")
        escape = literal.text
        node = parts["this"]
        if not isinstance(node, exp.Like):
            raise _not_understood(node)
    like_parts = _only(node, "this", "expression", "negate")
    pattern = _literal(like_parts["expression"])
    if pattern.kind != "text":
        raise _not_understood(node)
    like = Like(_column(like_parts["this"]), pattern.text, escape)
    return Not(like) if like_parts.get("negate") else like


def _in_key_range(node: exp.Expression) -> InKeyRange:
    parts = _only(node, "this", "expressions")
    arguments: list[exp.Expression] = list(parts.get("expressions") or ())
    if node.name.lower() != _KEY_RANGE_FUNCTION or len(arguments) not in (1, 3):
        raise RuleError(
            f"the WHERE calls {node.sql('mysql')}: the only function is in_keyrange('-80'), or "
            f"in_keyrange(column, 'vindex', '-80')"
        )
    texts = [_literal(each) for each in arguments[1:] or arguments]
    if any(each.kind != "text" for each in texts):
        raise _not_understood(node)
    key_range = KeyRange.parse(texts[-1].text)
    if len(arguments) == 1:
        return InKeyRange(key_range)
    return InKeyRange(key_range, _column(arguments[0]), vindex_named(texts[0].text).name)


def _is_column(node: exp.Expression) -> bool:
    return isinstance(node, exp.Column) or (
        isinstance(node, exp.Collate) and isinstance(node.this, exp.Column)
    )


def _column(node: exp.Expression) -> ColumnRef:
    collation = None
    if isinstance(node, exp.Collate):
        parts = _only(node, "this", "expression")
        collation = parts["expression"].name.lower()
        node = parts["this"]
    if not isinstance(node, exp.Column):
        raise RuleError(f"{node.sql('mysql')} is used where a column of the table is expected")
    return ColumnRef(_only(node, "this")["this"].name, collation)


def _literal(node: exp.Expression) -> Literal:
    sign = ""
    if isinstance(node, exp.Paren):
        return _literal(_only(node, "this")["this"])
    if isinstance(node, exp.Neg):
        node = _only(node, "this")["this"]
        sign = "-"
    if isinstance(node, exp.HexString) and not sign:
        return Literal("hex", node.name)
    if not isinstance(node, exp.Literal) or (sign and node.is_string):
        raise RuleError(
            f"{node.sql('mysql')} is used where a constant is expected (a number, 'text' or "
            f"x'hex'; for NULL use IS NULL)"
        )
    if node.is_string:
        return Literal("text", node.name)
    if _NUMBER.fullmatch(node.name):
        return Literal("number", sign + node.name)
    if _FLOAT.fullmatch(node.name):
        return Literal("float", sign + node.name)
    raise _not_understood(node)


def _not_understood(node: exp.Expression) -> RuleError:
    return RuleError(
        f"{node.sql('mysql')!r} in the WHERE is not one of: AND, OR, NOT, comparison of a column "
        f"and a constant, IN, BETWEEN, LIKE, IS NULL, in_keyrange"
    )
