"""How many examples Hypothesis generates: half of them in tests, fewer in `make quick`."""

from hypothesis import settings

# What Hypothesis generates where neither a test nor a profile says otherwise.
EXAMPLES_OF_A_TEST = 100


def examples(count: int) -> int:
    """Return the examples of a test that has `count` where others have 100."""
    return max(1, count * settings().max_examples // EXAMPLES_OF_A_TEST)
