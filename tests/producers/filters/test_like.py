"""LIKE against the plain regular expression that means the same."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from producers.filters.where import bytes_like_test, like_test

_PATTERNS = st.text("ab%_.|\n", max_size=8)
_VALUES = st.text("ab.|\n", max_size=8)


def like(pattern: str, value: str) -> bool:
    """`value LIKE pattern`, where | escapes nothing."""
    meant = {"%": ".*", "_": "."}
    text = "".join(meant.get(character, re.escape(character)) for character in pattern)
    return re.fullmatch(text, value, re.DOTALL) is not None


@given(_PATTERNS, _VALUES)
@example("a%", "ba")
@example("%a%b%", "bab")
@example("ab%ba", "aba")
def test_like_agrees_with_a_regular_expression(pattern: str, value: str) -> None:
    """However many wildcards there are, text and bytes are matched whole."""
    wanted = like(pattern, value)

    assert like_test(pattern, "")(value) is wanted
    assert bytes_like_test(pattern, "")(value.encode()) is wanted


@given(_VALUES, _VALUES)
def test_an_escaped_character_stands_for_itself(text: str, value: str) -> None:
    """With each character of a pattern escaped, LIKE is equality."""
    pattern = "".join(f"|{character}" for character in text)

    assert like_test(pattern, "|")(value) is (text == value)
    assert like_test(pattern, "|")(text)
