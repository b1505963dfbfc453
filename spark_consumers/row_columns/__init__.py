"""Shard-log records into Arrow columns, row by row: compiled by mypyc, right uncompiled too."""

from event_token.errors import UsageError
from spark_consumers.compiled import COMPILED, ROOT, STALE

__all__ = ["COMPILED", "StaleColumns"]


class StaleColumns(UsageError):  # noqa: N818 - named by what is wrong
    """Raised when compiled modules were built from other sources than those beside them."""


if STALE:
    raise StaleColumns(
        f"the compiled row columns in {ROOT} were built from other sources than those beside "
        f"them: run python -m spark_consumers.build (or python -m spark_consumers.build --clean)"
    )
