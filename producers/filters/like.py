"""LIKE by code: `%` and `_` over characters, or over bytes. No pattern takes quadratic time."""

import re
from collections.abc import Callable

from producers.filters.where_syntax import RuleError


def like_test(pattern: str, escape: str) -> Callable[[str], bool]:
    """`value LIKE pattern ESCAPE escape` as a predicate.

    RuleError on an escape at the end, or one that is a wildcard: servers test that one first.
    """
    if escape in {"%", "_"}:
        raise RuleError(f"LIKE with ESCAPE {escape!r}: take a character that is no wildcard")
    segments = _segments(pattern, escape)
    first, *rest = segments
    if not rest:
        whole = first[0]
        return lambda value: whole.fullmatch(value) is not None

    def test(value: str) -> bool:
        # Between `%` each piece is taken where it first fits: no later place could serve more.
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
    """The same over bytes: a byte is a character."""
    test = like_test(pattern.encode().decode("latin-1"), escape.encode().decode("latin-1"))
    return lambda value: test(value.decode("latin-1"))


def _segments(pattern: str, escape: str) -> list[tuple[re.Pattern[str], int]]:
    """The pieces between `%`, each with its length in characters."""
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
