"""Collations that can be evaluated here: the binary ones, which compare by code point.

All others need the server's own weights (`utf8mb4_0900_ai_ci`: 'e' = 'é'), so a rule that compares
by one is refused by name; COLLATE in the rule chooses another.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class BinaryCollation:
    """A binary collation. `pads`: trailing spaces are ignored. `codec`: of the text it can hold.

    `ordered`: its order is that of Unicode code points.
    """

    name: str
    charset: str
    codec: str
    pads: bool
    ordered: bool = True


_KNOWN: Final = (
    # Numbers as in the table map; MariaDB's NOPAD ones are 1024 higher.
    (46, BinaryCollation("utf8mb4_bin", "utf8mb4", "utf-8", pads=True)),
    (1070, BinaryCollation("utf8mb4_nopad_bin", "utf8mb4", "utf-8", pads=False)),
    (309, BinaryCollation("utf8mb4_0900_bin", "utf8mb4", "utf-8", pads=False)),
    (83, BinaryCollation("utf8mb3_bin", "utf8mb3", "utf-8", pads=True)),
    (1107, BinaryCollation("utf8mb3_nopad_bin", "utf8mb3", "utf-8", pads=False)),
    (65, BinaryCollation("ascii_bin", "ascii", "ascii", pads=True)),
    (1089, BinaryCollation("ascii_nopad_bin", "ascii", "ascii", pads=False)),
    # Ordered by cp1252's bytes.
    (47, BinaryCollation("latin1_bin", "latin1", "latin-1", pads=True, ordered=False)),
    (1071, BinaryCollation("latin1_nopad_bin", "latin1", "latin-1", pads=False, ordered=False)),
)
BINARY: Final = "binary"
BINARY_ID: Final = 63
BY_NAME: Final = {collation.name: collation for _, collation in _KNOWN}
# `utf8_bin` is the older name of utf8mb3_bin.
_ALIASES: Final = {"utf8_bin": "utf8mb3_bin", "utf8_nopad_bin": "utf8mb3_nopad_bin"}
_NAMES_BY_ID: Final = {number: collation.name for number, collation in _KNOWN}
_IDS_BY_NAME: Final = {collation.name: number for number, collation in _KNOWN}
# Stands for any other collation; no server has this number.
OTHER_ID: Final = 0xFFFF


def collation_named(name: str) -> BinaryCollation | None:
    """Return the collation, None if it cannot be evaluated here."""
    lower = name.lower()
    return BY_NAME.get(_ALIASES.get(lower, lower))


def collation_number(name: str) -> int:
    """Return the table map's number of a collation, OTHER_ID if it cannot be evaluated here."""
    if name == BINARY:
        return BINARY_ID
    lower = name.lower()
    return _IDS_BY_NAME.get(_ALIASES.get(lower, lower), OTHER_ID)


def collation_name(number: int, charset: str) -> str:
    """Return the name of a table map's collation, or of its character set and the number."""
    if number == BINARY_ID:
        return BINARY
    return _NAMES_BY_ID.get(number, f"{charset} collation {number}")
