"""Faults of the installation, reported before they surface as an obscure import error.

This module imports only the standard library: a foreign package may hide any of ours.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

HOME = Path(__file__).parents[1]
# The other top-level packages of this distribution. Other distributions may use the names, too.
PACKAGES = (
    "caching",
    "credentials",
    "databases",
    "event_token",
    "producers",
    "resharding",
    "sinks",
    "spark_consumers",
    "topics",
)
# By module, the extra of the distribution that installs it.
EXTRAS = {
    **dict.fromkeys(
        ("deltalake", "numpy", "obstore", "py4j", "pyarrow", "pyroaring", "pyspark"), "spark"
    ),
    "redis": "redis",
    "pymemcache": "memcached",
    **dict.fromkeys(("psycopg", "sqlalchemy"), "database"),
    **dict.fromkeys(("prometheus_client", "starlette", "uvicorn"), "serve"),
}


class HiddenPackageError(ImportError):
    """Raised when Python would import another package under the name of one of ours."""


class MissingExtraError(ImportError):
    """Raised when a module is missing that an optional extra of this distribution installs."""


def check_packages() -> None:
    """Raise HiddenPackageError unless all our packages are in the same folder as this one."""
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None:
            raise HiddenPackageError(f"shardstream is incomplete: {HOME} has no package {name!r}")
        found = Path(spec.origin or next(iter(spec.submodule_search_locations or [name])))
        if found.resolve() != (HOME / name / "__init__.py").resolve():
            raise HiddenPackageError(
                f"another package called {name!r} hides that of shardstream: Python finds "
                f"{found} before {HOME / name}; remove it from sys.path, or install shardstream "
                "into its own virtual environment"
            )


def missing_extra(error: ModuleNotFoundError, extra: str | None = None) -> MissingExtraError | None:
    """Return the error to raise instead, if an extra installs the module that was not found.

    `extra`: the smallest extra that is enough; default: by module.
    """
    missing = (error.name or "").partition(".")[0]
    if missing not in EXTRAS:
        return None
    command = f"pip install 'shardstream[{extra or EXTRAS[missing]}]'"
    return MissingExtraError(f"{missing} is not installed; it comes with an extra: {command}")


def import_own(name: str, extra: str | None = None) -> ModuleType:
    """Import one of our modules. Raises HiddenPackageError and MissingExtraError.

    `extra`: as of `missing_extra`.
    """
    check_packages()
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if explained := missing_extra(error, extra):
            raise explained from error
        raise
