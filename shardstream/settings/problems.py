"""Explains problems of settings in the terms of the settings file instead of pydantic's."""

import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import ErrorDetails

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
# pydantic adds the member of a union that it tried to the place of an error.
_UNION_MEMBER: Final = re.compile(r"literal\[.*\]|str|int|bool|TruncateSection")
# Their values may be secrets that belong elsewhere.
_NOT_SHOWN: Final = re.compile(r"kafka\.(client|secrets)|\.store\b|password|secret|_key\b|\.key\b")

_MESSAGES: Final = {
    "missing": "is missing",
    "int": "must be a whole number",
    "bool": "must be true or false",
    "string": "must be a string",
    "path": "must be a string, the path of a file",
    "dict": "must be a table",
    "model": "must be a table",
    "dataclass": "must be a table",
    "tuple": "must be an array",
    "list": "must be an array",
    "frozen": "must be an array",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "string_pattern_mismatch": "must be of the form {pattern}",
    "too_short": "must not be empty",
}
_UNKNOWN: Final = ("extra_forbidden", "unexpected_keyword_argument")


def describe(settings: type[BaseModel], errors: Sequence[ErrorDetails]) -> list[str]:
    """Return one line per setting: its place in the file, and what is accepted there."""
    found: dict[str, list[str]] = {}
    shown: dict[str, str] = {}
    for error in errors:
        place = [part for part in error["loc"] if not _is_union_member(part)]
        name = _dotted(place)
        if error["type"] in _UNKNOWN:
            text = _unknown(settings, place)
        else:
            text = _text(error)
            shown[name] = _shown(name, error)
        found.setdefault(name, []).append(text)
    # An array whose only entry is wrong also counts as empty.
    wrong_within = {name for name in found if any(n.startswith(f"{name}[") for n in found)}
    return [
        f"{name}: {' or '.join(texts).replace(' or must be', ', or')}{shown.get(name, '')}"
        for name, texts in found.items()
        if name not in wrong_within
    ]


def _is_union_member(part: int | str) -> bool:
    return isinstance(part, str) and _UNION_MEMBER.fullmatch(part) is not None


def _dotted(place: Sequence[int | str]) -> str:
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += "." * bool(text) + (part if _BARE_KEY.fullmatch(part) else f'"{part}"')
    return text


def _text(error: ErrorDetails) -> str:
    kind, facts = error["type"], error.get("ctx", {})
    message = _MESSAGES.get(kind) or _MESSAGES.get(kind.partition("_")[0])
    return error["msg"] if message is None else message.format(**facts)


def _shown(name: str, error: ErrorDetails) -> str:
    given = error["input"]
    if isinstance(given, (str, int, float)) and not _NOT_SHOWN.search(name):
        return f", not {given!r}"
    return ""


def _unknown(settings: type[BaseModel], place: Sequence[int | str]) -> str:
    names = list(_names_in(settings, place[:-1]))
    if close := get_close_matches(str(place[-1]), names, n=1):
        return f"is not a setting; did you mean {close[0]}?"
    return (
        f"is not a setting; there are {', '.join(sorted(names))}" if names else "is not a setting"
    )


def _names_in(kind: Any, place: Sequence[int | str]) -> Iterator[str]:
    """Yield the names of the settings in the table at a place of the file."""
    for part in place:
        kind = _members(kind).get(str(part)) or _entry(kind)
    yield from (name for name in _members(kind) if name != "folder")


def _members(kind: Any) -> Mapping[str, Any]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: _plain(found.annotation) for name, found in kind.model_fields.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {found.name: _plain(hints[found.name]) for found in fields(kind)}
    return {}


def _entry(kind: Any) -> Any:
    """Return the type of the values of a table or an array."""
    held = [_plain(one) for one in typing.get_args(kind) if one is not Ellipsis]
    return held[-1] if held else None


def _plain(kind: Any) -> Any:
    """Return a type without the alternative None."""
    if isinstance(kind, types.UnionType):
        return next(one for one in typing.get_args(kind) if one is not types.NoneType)
    return kind
