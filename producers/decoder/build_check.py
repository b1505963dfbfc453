"""Refuses compiled modules that do not fit their sources, before the first of them is loaded."""

from event_token.errors import UsageError
from producers.compiled import COMPILED, ROOT, STALE

__all__ = ["COMPILED", "StaleBuild"]


class StaleBuild(UsageError):  # noqa: N818 - named by what is wrong
    """Raised when compiled modules were built from other sources than those beside them."""


if STALE:
    raise StaleBuild(
        f"the compiled decoder in {ROOT} was built from other sources than those beside it: "
        f"run python -m producers.build (or python -m producers.build --clean)"
    )
