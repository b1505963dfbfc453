"""LIKE over characters or bytes, by code point. No pattern takes quadratic time."""

import re
from collections.abc import Callable

from producers.filters.errors import RuleError


def like_test(pattern: str, escape: str) -> Callable[[str], bool]:
    """Return `value LIKE pattern ESCAPE escape` as a predicate.

    RuleError on an escape character at the end of the pattern, and on one that is a wildcard,
    which servers look at first.
    """
    if escape in {"%", "_"}:
        raise RuleError(f"LIKE with ESCAPE {escape!r}: use a character that is not a wildcard")
    (first, _), *rest = _segments(pattern, escape)
    if not rest:
        return lambda value: first.fullmatch(value) is not None
    *middle, (last, size) = rest

    def test(value: str) -> bool:
        # Each piece between `%` is matched where it first fits: no later place leaves more room.
        found = first.match(value)
        for piece, _ in middle:
            if found is None:
                return False
            found = piece.search(value, found.end())
        begin = len(value) - size
        if found is None or begin < found.end():
            return False
        return last.match(value, begin) is not None

    return test


def bytes_like_test(pattern: str, escape: str) -> Callable[[bytes], bool]:
    """Return the same over bytes: each byte is a character."""
    test = like_test(pattern.encode().decode("latin-1"), escape.encode().decode("latin-1"))
    return lambda value: test(value.decode("latin-1"))


def _segments(pattern: str, escape: str) -> list[tuple[re.Pattern[str], int]]:
    """Return the pieces between `%`, each with its length in characters."""
    pieces: list[list[str]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if escape and character == escape:
            following = next(characters, None)
            if following is None:
                raise RuleError(f"the LIKE pattern {pattern!r} ends with its escape character")
            pieces[-1].append(re.escape(following))
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append("." if character == "_" else re.escape(character))
    return [(re.compile("".join(piece), re.DOTALL), len(piece)) for piece in pieces]
