"""Refuses compiled modules that do not fit their sources, before the first of them is loaded."""

from event_token.errors import UsageError
from topics.compiled_modules import ROOT, CompiledModules


class StaleBuild(UsageError):  # noqa: N818 - named by what is wrong
    """Raised when compiled modules were built from other sources than those beside them."""


def check_build(group: CompiledModules) -> None:
    """Raise StaleBuild where an import would give what was compiled from other sources."""
    if group.is_stale:
        build = f"python -m {group.package}.build"
        raise StaleBuild(
            f"the compiled {group.title} in {ROOT} were built from other sources than those beside "
            f"them: run {build} (or {build} --clean)"
        )
