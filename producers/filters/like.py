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
    segments = _segments(pattern, escape)
    first, *rest = segments
    if not rest:
        whole = first[0]
        return lambda value: whole.fullmatch(value) is not None

    def test(value: str) -> bool:
        # Each piece between `%` is matched where it first fits: no later place leaves more room.
        at = 0
        for i, (piece, size) in enumerate(segments):
            if i == len(segments) - 1:
                begin = len(value) - size
                return begin >= at and piece.match(value, begin) is not None
            found = piece.match(value) if i == 0 else piece.search(value, at)
            if found is None:
                return False
            at = found.end()
        return True

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
