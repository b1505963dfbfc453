"""JSON documents as SQL literals that keep the digits of their numbers. Pure."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

from databases.sql import text_literal

# A quick test: most documents hold no such number.
_MAY_BE_DECIMAL: Final = re.compile(r"\d\.\d|\d{19}")
_INTEGERS: Final = range(-(2**63), 2**64)


def json_literal(text: str) -> str:
    """A JSON document whose decimals stay decimals.

    The server would parse 12.50 as a double and print 12.5, so such numbers are set one by one.
    """
    if not _MAY_BE_DECIMAL.search(text):
        return text_literal(text)
    document = json.loads(text, parse_float=_Digits, parse_int=_Digits)
    decimals = "".join(
        f", {text_literal(path)}, {number}" for path, number in _decimals(document, "$")
    )
    return (
        f"JSON_SET(CAST({text_literal(text)} AS JSON){decimals})"
        if decimals
        else text_literal(text)
    )


class _Digits(str):
    """A number, digit by digit as the server printed it."""

    __slots__ = ()


def _decimals(value: Any, path: str) -> Iterator[tuple[str, _Digits]]:
    """Yield path and digits of each number that a double or a 64-bit integer does not print."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _decimals(item, f"{path}.{json.dumps(key)}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _decimals(item, f"{path}[{i}]")
    elif isinstance(value, _Digits) and "e" not in value.lower():
        if "." not in value:
            is_decimal = int(value) not in _INTEGERS
        else:
            trailing = value.endswith("0") and not value.endswith(".0")
            is_decimal = trailing or Decimal(value) != Decimal(repr(float(value)))
        if is_decimal:
            yield path, value
