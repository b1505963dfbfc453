"""The one-way rule of imports: who may import whom, held against the source of all packages.

`event_token <- credentials <- databases, topics <- producers, resharding, caching, sinks <-
spark_consumers <- shardstream`: never the other way, never sideways. Imports inside functions and
for type checking count too, and so do modules that are named in strings: something imports them by
that name.
"""

import re
import sys
from collections.abc import Iterator

import pytest

from tests.repository import (
    PACKAGES,
    ROOT,
    Source,
    module_name,
    parsed,
    python_files,
    source_of,
)

BASE = ("databases", "topics")
LOWEST = ("event_token", "credentials")
MIDDLE = ("producers", "resharding", "caching", "sinks")

# What each package may import of the others.
BELOW: dict[str, tuple[str, ...]] = {
    "event_token": (),
    "credentials": ("event_token",),
    **dict.fromkeys(BASE, LOWEST),
    **dict.fromkeys(MIDDLE, (*LOWEST, *BASE)),
    "spark_consumers": (*LOWEST, *BASE, "sinks"),
    "shardstream": (*LOWEST, *BASE, *MIDDLE, "spark_consumers"),
}

# Other parts of the repository, which no package may need.
NOT_SHIPPED = ("tests", "benchmarks", "docker", "docs", "examples", "build")

# The pure modules decide on values alone: no network, no files, no clock, no chance.
PURE = ("event_token", "topics.reading", "caching.protocol", "sinks.resume")
IMPURE_IMPORTS = (
    *("asyncio", "confluent_kafka", "http", "logging", "os", "pathlib", "random", "requests"),
    *("secrets", "select", "shutil", "signal", "socket", "ssl", "structlog", "subprocess"),
    *("tempfile", "threading", "time", "urllib.request"),
)

# event_token imports nothing else than the standard library and these.
EVENT_TOKEN_MAY_IMPORT = frozenset(("mypy_extensions", "librt"))

# What each extra brings, and who may import it: a subscriber and an application server need none.
EXTRAS = {
    "pyspark": ("spark_consumers", "shardstream"),
    "pandas": ("spark_consumers", "shardstream"),
    "deltalake": ("sinks.lake", "spark_consumers", "shardstream"),
    **dict.fromkeys(
        ("pyarrow", "numpy"), ("topics.arrow", "sinks", "spark_consumers", "shardstream")
    ),
}


def _is_in(module: str, names: tuple[str, ...]) -> bool:
    """Tell whether module is one of the names or inside one of them."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


# `package.part`, alone or within a longer text such as `python -m package.part`.
MODULE_IN_TEXT = re.compile(rf"(?<![\w./-])({'|'.join(PACKAGES)})\.(\w+)")


def named_modules(source: Source) -> Iterator[str]:
    """Yield the modules of this repository that source names in strings other than docstrings."""
    for text in source.texts:
        for package, part in MODULE_IN_TEXT.findall(text):
            path = ROOT / package / part
            if path.is_dir() or path.with_suffix(".py").is_file():
                yield f"{package}.{part}"


def violations(module: str, source: Source) -> list[str]:
    """Return what the imports of a module's source break, one sentence each."""
    package = module.split(".", maxsplit=1)[0]
    broken: list[str] = []
    for name in named_modules(source):
        top = name.split(".", maxsplit=1)[0]
        if top != package and top not in BELOW[package]:
            broken.append(f"{module} names {name} in a string: {package} may not import {top}")
    for name in source.imports:
        top = name.split(".", maxsplit=1)[0]
        if top in PACKAGES and top != package and top not in BELOW[package]:
            broken.append(f"{module} imports {name}: {package} may not import {top}")
        if top in NOT_SHIPPED:
            broken.append(f"{module} imports {name}, which is not shipped")
        if _is_in(module, PURE) and _is_in(name, IMPURE_IMPORTS):
            broken.append(f"{module} imports {name}, but is pure: no I/O, no clock")
        if package == "event_token" and not (
            top == package or top in sys.stdlib_module_names or top in EVENT_TOKEN_MAY_IMPORT
        ):
            broken.append(f"{module} imports {name}: not in the standard library")
        if not _is_in(module, EXTRAS.get(top, (package,))):
            broken.append(f"{module} imports {name}, which only users of an extra have")
    return broken


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    """No module of a package imports sideways, upwards, or what its users need not have."""
    broken = [
        sentence
        for path in python_files(package)
        for sentence in violations(module_name(path), source_of(path))
    ]

    assert broken == []


def test_every_folder_is_checked() -> None:
    """No Python file is outside the packages and the folders that are not shipped."""
    found = {
        path.name for path in ROOT.iterdir() if path.is_dir() and next(path.rglob("*.py"), None)
    }
    shipped = {name for name in found if not name.startswith(".")} - set(NOT_SHIPPED)

    assert shipped == set(PACKAGES)
    assert [path.name for path in ROOT.glob("*.py")] == ["setup.py"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("event_token.token", "import topics"),
        ("event_token.token", "import numpy"),
        ("event_token.token", "import fastavro"),
        ("event_token.token", "from time import monotonic"),
        ("event_token.token", "def f():\n    import socket"),
        ("topics.records.event_decoder", "from producers.decoder import Decoder"),
        ("topics.stream.subscriber", "import pyarrow as pa"),
        ("topics.reading.merge", "from os import environ"),
        ("topics.reading.merge", "import os.path"),
        ("topics.reading.merge", "import urllib.request"),
        ("topics.reading", "from confluent_kafka import Consumer"),
        ("producers.main", "from spark_consumers import sinks"),
        ("producers.main", "from ..resharding import plan"),
        ("producers.main", "if TYPE_CHECKING:\n    import shardstream.settings.model"),
        ("producers.main", "import importlib\nimportlib.import_module('resharding.plan')"),
        ("producers.main", "import tests.conftest"),
        ("databases.connection", "import topics.names"),
        ("topics.names", "from databases import sql"),
        ("topics.names", "MODULES = ('producers.settings',)"),
        ("topics.names", "run('python -m producers.settings')"),
        ("spark_consumers.source", "import producers"),
        ("resharding.plan", "import pyspark"),
    ],
)
def test_rule_finds_what_breaks_it(module: str, source: str) -> None:
    """Each kind of forbidden import is found, wherever it hides."""
    assert violations(module, parsed(module, source)) != []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("event_token.token", "from event_token import errors\nfrom mypy_extensions import i64"),
        ("event_token.token", "from . import errors\nimport re"),
        ("event_token.running_set", "from librt.strings import BytesWriter"),
        (
            "topics.stream.subscriber",
            "import time\nimport confluent_kafka\nimport topics.reading.merge",
        ),
        ("topics.reading_list", "import time"),
        ("topics.reading.merge", "from topics.reading.times import time\nfrom urllib import parse"),
        (
            "producers.main",
            "from .decoder import Decoder\nimport event_token, topics.records.event_decoder",
        ),
        ("spark_consumers.source", "import numpy, pyspark.sql.datasource"),
        ("shardstream.commands.app", "import spark_consumers, producers.main"),
        ("producers.main", "MODULES = ('topics.names', 'producers.settings')"),
        ("producers.main", "import databases.sql"),
        ("topics.names", "'producers.settings reads them'"),
        ("topics.names", "NAMES = ('shardstream.toml', 'shardstream.a1', '_shardstream.schemas')"),
    ],
)
def test_rule_lets_the_rest_pass(module: str, source: str) -> None:
    """What goes downwards, stays inside or comes from the standard library is allowed."""
    assert violations(module, parsed(module, source)) == []


def test_relative_imports_are_resolved() -> None:
    """A relative import is resolved to the module that it names."""
    inside, package = "from ..reading import merge", "from .reading import merge"

    assert parsed("topics.client.sub", inside).imports == {"topics.reading.merge"}
    assert parsed("topics", package, is_package=True).imports == {"topics.reading.merge"}
