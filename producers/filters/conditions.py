"""What the WHERE of a filter rule may contain, as a small tree."""

from dataclasses import dataclass

from event_token import KeyRange
from event_token.errors import UsageError


class RuleError(UsageError):
    """Raised on a filter rule that cannot be applied; the caller says whose rule it is."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. `kind`: `number` (digits, a point), `float` (with an exponent), `text`, `hex`."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """A column, and the collation that COLLATE gives it."""

    name: str
    collation: str | None = None


@dataclass(frozen=True, slots=True)
class Compare:
    """Column, operator, constant; a comparison with the constant on the left is mirrored."""

    operator: str
    column: ColumnRef
    literal: Literal


@dataclass(frozen=True, slots=True)
class In:
    """`column IN (constants)`."""

    column: ColumnRef
    literals: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Between:
    """`column BETWEEN low AND high`."""

    column: ColumnRef
    low: Literal
    high: Literal


@dataclass(frozen=True, slots=True)
class Like:
    """`column LIKE pattern ESCAPE escape`; "" for no escape character."""

    column: ColumnRef
    pattern: str
    escape: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """`column IS NULL`."""

    column: ColumnRef


@dataclass(frozen=True, slots=True)
class InKeyRange:
    """`in_keyrange('-80')`, or with a column and the name of a vindex in front."""

    key_range: KeyRange
    column: ColumnRef | None = None
    vindex: str = ""


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT term`."""

    term: "Condition"


@dataclass(frozen=True, slots=True)
class AllOf:
    """Terms joined by AND."""

    terms: "tuple[Condition, ...]"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Terms joined by OR."""

    terms: "tuple[Condition, ...]"


Condition = Compare | In | Between | Like | IsNull | InKeyRange | Not | AllOf | AnyOf
