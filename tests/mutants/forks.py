"""Run tests in forked processes, each of which sees one module changed."""

import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.generated import EXAMPLES_OF_A_TEST
from tests.mutants.changed_module import ChangedModule, change_in_place
from tests.mutants.placed import Placed
from tests.repository import PACKAGES

# A mutant that loops for ever or fills the memory is noticed: one test may take this part longer
# than it did without a mutant, and all of them, with their imports, 120 s of CPU.
TEST_FACTOR_MAX = 5
TEST_EXTRA_S_MAX = 2
CPU_S_MAX = 120
WAIT_S_MAX = 600
MEMORY_BYTES_MAX = 4 * 2**30

# How a process ends.
PASSED = 0
FAILED = 1
UNDECIDED = 64

# The same examples in each run, so that a rate can be repeated; nobody reads a shrunk example.
settings.register_profile(
    "mutants",
    max_examples=EXAMPLES_OF_A_TEST,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=(Phase.explicit, Phase.generate),
)


class ForkedTests:
    """The tests `paths` of the copy of this repository at `root`.

    What they import from elsewhere is imported once, here, so that a run costs little more than
    the tests. Of these only those run that call the function with the mutant, the quickest first.
    """

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        """Run nothing yet."""
        self._root = root
        self._paths = paths
        self._seconds: dict[str, float] = {}
        self._calls: dict[str, set[str]] = {}

    def prepare(self) -> str:
        """Run all tests without a mutant; return what they print if one fails, else ""."""
        printed, report = self._root / "printed.txt", self._root / "report.json"

        def run() -> int:
            order, calls = _Order({}), _Calls(self._root)
            status = self._test([order, calls], printed)
            others = list(_others(sys.modules, self._root))
            found = {"seconds": order.seconds, "calls": calls.found, "modules": others}
            report.write_text(json.dumps(found, default=list))
            return status

        if os.waitpid(_fork(run), 0)[1] != 0:
            return printed.read_text()
        found = json.loads(report.read_text())
        self._seconds = found["seconds"]
        self._calls = {test: set(names) for test, names in found["calls"].items()}
        for name in found["modules"]:
            with suppress(ImportError):
                importlib.import_module(name)
        gc.freeze()
        return ""

    def survivors(self, mutants: Sequence[Placed], jobs: int) -> Iterator[Placed]:
        """Yield the mutants with which all tests pass, `jobs` processes at a time.

        The tests run in a process that has imported everything, with one function's code replaced.
        Only survivors that already have an effect at import are imported for another run.
        """
        undecided = []
        for mutant, status in self._survivors_in_place(mutants, jobs):
            if status == PASSED:
                yield mutant
            else:
                undecided.append(mutant)
        for mutant, status in _ended(undecided, jobs, self._imported):
            if status == PASSED:
                yield mutant

    def _survivors_in_place(
        self, mutants: Sequence[Placed], jobs: int
    ) -> Iterator[tuple[Placed, int]]:
        """Yield mutants with PASSED or, where that decides nothing, UNDECIDED."""
        number_of = {mutant: number for number, mutant in enumerate(mutants)}
        ends, begins = os.pipe()
        at_import: set[CodeType] = set()

        def note(frame: FrameType, event: str, _argument: object) -> None:
            if event == "call":
                at_import.add(frame.f_code)

        def report_survivors(session: pytest.Session) -> NoReturn:
            sys.setprofile(None)
            for mutant, status in _ended(
                mutants, jobs, lambda each: self._changed(each, session, at_import)
            ):
                if status in {PASSED, UNDECIDED}:
                    os.write(begins, f"{number_of[mutant]} {status}\n".encode())
            os._exit(0)

        def run() -> int:
            sys.setprofile(note)
            return self._test([_Order(self._seconds, report_survivors)])

        pid = _fork(run)
        os.close(begins)
        with open(ends) as lines:  # noqa: PTH123 - a descriptor
            for line in lines:
                number, status = map(int, line.split())
                yield mutants[number], status
        os.waitpid(pid, 0)

    def _changed(self, mutant: Placed, session: pytest.Session, at_import: set[CodeType]) -> int:
        """Run the collected tests in a child with one function changed; return the child's id."""

        def run() -> int:
            _limit()
            replaced = change_in_place(mutant)
            if replaced is None:
                return UNDECIDED
            name = _name_of(replaced)
            items = [each for each in session.items if name in self._calls.get(each.nodeid, ())]
            for item, following in zip(items, [*items[1:], None], strict=False):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    return FAILED
            return UNDECIDED if replaced in at_import else PASSED

        return _fork(run)

    def _imported(self, mutant: Placed) -> int:
        def run() -> int:
            _limit()
            sys.meta_path.insert(0, ChangedModule(self._root, mutant))
            return self._test([_Order(self._seconds)])

        return _fork(run)

    def _test(self, plugins: list[object], printed: Path = Path(os.devnull)) -> int:
        out = os.open(printed, os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(self._root)
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]
        sys.path.insert(0, str(self._root))
        options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
        options.append("--hypothesis-profile=mutants")
        return int(pytest.main([*options, "-m", "not servers", *self._paths], plugins=plugins))


class _Order:
    """A plugin of pytest that times the tests, and runs those first that were quick.

    What counts is the time of the CPU: on a busy machine the clock says nothing about a test.
    """

    def __init__(
        self, known: dict[str, float], instead: Callable[[pytest.Session], NoReturn] | None = None
    ) -> None:
        self._known = known
        self._instead = instead
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self._known.get(item.nodeid, 0))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        if self._instead is not None:
            self._instead(session)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if item.nodeid in self._known:
            seconds = TEST_FACTOR_MAX * self._known[item.nodeid] + TEST_EXTRA_S_MAX
            signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process
        before = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - before


class _Calls:
    """A plugin of pytest that notes which functions of the repository each test calls."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}{os.sep}"
        self.found: dict[str, set[str]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        codes: set[CodeType] = set()

        def note(frame: FrameType, event: str, _argument: object) -> None:
            if event == "call":
                codes.add(frame.f_code)

        sys.setprofile(note)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            names = {_name_of(code) for code in codes if code.co_filename.startswith(self._root)}
            self.found[item.nodeid] = names


def _name_of(code: CodeType) -> str:
    return f"{code.co_filename} {code.co_qualname} {code.co_firstlineno}"


def _ended(
    mutants: Iterable[Placed], jobs: int, start: Callable[[Placed], int]
) -> Iterator[tuple[Placed, int]]:
    """Start a process for each mutant; yield the mutants with how theirs ended."""
    running: dict[int, Placed] = {}

    def ended() -> tuple[Placed, int]:
        pid, status = os.wait()
        return running.pop(pid), os.waitstatus_to_exitcode(status)

    for mutant in mutants:
        running[start(mutant)] = mutant
        if len(running) >= jobs:
            yield ended()
    while running:
        yield ended()


def _fork(run: Callable[[], int]) -> int:
    """Run something in a child, whose exit status is what it returns; return the child's id."""
    pid = os.fork()
    if not pid:
        status = FAILED
        try:
            status = run()
        finally:
            os._exit(status)
    return pid


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    signal.alarm(WAIT_S_MAX)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in {"tests", "setup", *PACKAGES}


def _others(modules: dict[str, ModuleType], root: Path) -> Iterator[str]:
    """Yield the names of the modules that are not this repository's."""
    for name, module in modules.items():
        file = getattr(module, "__file__", None)
        # pytest rewrites its plugins as it imports them, by itself.
        is_plugin = "pytest" in name.partition(".")[0]
        if file and not Path(file).is_relative_to(root) and not _is_ours(name) and not is_plugin:
            yield name
