"""Filter rules as the settings state them, and which rule a table has."""

import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final

from databases.internal_tables import INTERNAL_DATABASE
from producers.filters.conditions import Condition, RuleError

# A regular expression that begins with the name of one database and a full stop.
_DATABASE = re.compile(r"([\w$-]+)(?:\\\.|\[\.\])(.*)", re.DOTALL)
# What may contain a `|` that is no alternative of the whole expression.
_NO_BRANCHES = re.compile(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)
# The length of the hash: a shorter key is easier to guess than the hash is to invert.
KEY_BYTES_MIN: Final = 32
# 128 bits are enough to tell keys apart.
_FINGERPRINT_OF = b"fingerprint of shardstream's hmac_key"
_FINGERPRINT_CHARS = 32
# It stands before each masked value, in rows by the million.
KEY_ID_CHARS_MAX: Final = 32
_GROUP = re.compile(r"\([^()]*\)")


class MaskKind(StrEnum):
    """What a mask does."""

    DROP = "drop"
    NULL = "null"
    TRUNCATE = "truncate"
    HMAC = "hmac"


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask. `length`: how many characters of text, or bytes, TRUNCATE keeps."""

    kind: MaskKind
    length: int = 0


@dataclass(frozen=True)
class TablePattern:
    """A table as `database.table`, or `/regexp/` that matches the whole name."""

    text: str

    def __post_init__(self) -> None:
        """Refuse a pattern that can match nothing."""
        if self.is_regexp:
            try:
                _ = self._regexp
            except re.error as error:
                raise RuleError(f"{self.text} is not a regular expression: {error}") from error
        elif "." not in self.text.strip("."):
            raise RuleError(f"{self.text!r} is not a table: write database.table, or /regexp/")

    @property
    def is_regexp(self) -> bool:
        """Whether it can match any number of tables."""
        return len(self.text) > 2 and self.text.startswith("/") and self.text.endswith("/")

    @cached_property
    def _regexp(self) -> re.Pattern[str]:
        return re.compile(self.text[1:-1])

    def matches(self, name: str) -> bool:
        """Tell whether it matches `database.table`."""
        if self.is_regexp:
            return self._regexp.fullmatch(name) is not None
        return self.text == name

    @cached_property
    def _database(self) -> tuple[str, str] | None:
        """The database that all names it matches are of, and the rest; None if unknown."""
        if not self.is_regexp:
            database, _, table = self.text.partition(".")
            return database, table
        body = self.text[1:-1]
        found = _DATABASE.fullmatch(body)
        plain = _NO_BRANCHES.sub("", body)
        while (inner := _GROUP.sub("", plain)) != plain:
            plain = inner
        return None if found is None or "|" in plain else (found[1], found[2])

    @property
    def database(self) -> str | None:
        """The database that all names it matches are of; None if it may match in others."""
        return None if self._database is None else self._database[0]

    def is_of(self, database: str) -> bool:
        """Tell whether it is about this database alone."""
        return self.database == database

    def may_match_in(self, database: str) -> bool:
        """Tell whether it may match a table of a database."""
        return self._database is None or self.is_of(database)

    def matches_all_of(self, database: str) -> bool:
        """Tell whether it surely matches all tables of a database."""
        return self.is_regexp and self._database in {(database, ".*"), (database, ".+")}


@dataclass(frozen=True)
class FilterRule:
    """What reaches the log of a table: columns (all when empty), rows, masks by column."""

    table: TablePattern
    columns: tuple[str, ...] = ()
    where: str = ""
    masks: Mapping[str, Mask] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Parse the WHERE, so that an error in it is reported before anything starts."""
        _ = self.condition

    @cached_property
    def condition(self) -> Condition | None:
        """The parsed WHERE."""
        if not self.where:
            return None
        # Here, because settings without a WHERE need no SQL parser.
        from producers.filters.where_syntax import parse_where  # noqa: PLC0415

        try:
            return parse_where(self.where)
        except RuleError as error:
            raise RuleError(f"rule of {self.table.text}: {error}") from error


@dataclass(frozen=True)
class FilterSettings:
    """All rules of a keyspace. Without `include` all tables are; `exclude` wins over it.

    `hmac_key_id` stands before the values that HMAC masks make, "" for a key that never changes.
    RuleError on an HMAC mask without a key that is long enough.
    """

    include: tuple[TablePattern, ...] = ()
    exclude: tuple[TablePattern, ...] = ()
    rules: tuple[FilterRule, ...] = ()
    hmac_key: bytes = field(default=b"", repr=False)
    hmac_key_id: str = ""

    def __post_init__(self) -> None:
        """Check the key."""
        if self._has_hmac() and len(self.hmac_key) < KEY_BYTES_MIN:
            raise RuleError(
                f"an hmac mask needs a key of at least {KEY_BYTES_MIN} bytes in hmac_key, and it "
                f"has {len(self.hmac_key)}"
            )

    def _has_hmac(self) -> bool:
        masks = [mask for rule in self.rules for mask in rule.masks.values()]
        return any(mask.kind is MaskKind.HMAC for mask in masks)

    def mask_key(self) -> str:
        """A fingerprint of the key, which does not tell it; "" if no mask uses it."""
        if not self._has_hmac():
            return ""
        return hmac.digest(self.hmac_key, _FINGERPRINT_OF, "sha256").hex()[:_FINGERPRINT_CHARS]

    def __bool__(self) -> bool:
        """Whether there is anything to filter."""
        return bool(self.include or self.exclude or self.rules)

    def includes(self, database: str, table: str) -> bool:
        """Tell whether the table's rows reach the log at all."""
        if database == INTERNAL_DATABASE:
            return True
        name = f"{database}.{table}"
        if any(pattern.matches(name) for pattern in self.exclude):
            return False
        return not self.include or any(pattern.matches(name) for pattern in self.include)

    def asks_for(self, database: str, table: str) -> bool:
        """Tell whether `include` has the table by a pattern that names its database."""
        return self.includes(database, table) and any(
            (pattern.is_of(database) or database in pattern.text)
            and pattern.matches(f"{database}.{table}")
            for pattern in self.include
        )

    def databases(self) -> frozenset[str] | None:
        """The databases that tables of the log can be of; None: any."""
        named = {pattern.database for pattern in self.include}
        return frozenset(filter(None, named)) if named and None not in named else None

    def leaves_out_database(self, database: str) -> bool:
        """Tell whether surely no table of the database reaches the log."""
        if database == INTERNAL_DATABASE:
            return False
        if any(pattern.matches_all_of(database) for pattern in self.exclude):
            return True
        return bool(self.include) and not any(p.may_match_in(database) for p in self.include)

    def rule_text(self, database: str, table: str) -> str:
        """Return what the rules do with a table, "" for nothing.

        Two texts are equal if the same rows and columns reach the log. The key of HMAC masks is
        not part of it: it only changes how a value looks, which the value says, and it is secret.
        """
        if not self.includes(database, table):
            return "left out"
        rule = self.rule_for(database, table)
        if rule is None:
            return ""
        masks = {column: [mask.kind.value, mask.length] for column, mask in rule.masks.items()}
        said = {"columns": rule.columns, "where": rule.where, "masks": masks}
        return json.dumps(said, ensure_ascii=False, sort_keys=True)

    def rule_for(self, database: str, table: str) -> FilterRule | None:
        """Return the rule of a table. RuleError if two match: one could undo the other's masks."""
        name = f"{database}.{table}"
        found = [rule for rule in self.rules if rule.table.matches(name)]
        if len(found) > 1:
            names = ", ".join(rule.table.text for rule in found)
            raise RuleError(f"table {name} has {len(found)} rules ({names}); it can have one")
        return None if not found or database == INTERNAL_DATABASE else found[0]
