"""Observes a drain from outside: the end of a topic, the CPU time of a process."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public

from benchmarks.figures import Sample
from event_token.errors import Halt, Retry
from shardstream.local.processes import ServerProcess
from topics.kafka.client import ClientConfig, open_admin, open_consumer
from topics.kafka.errors import kafka_errors
from topics.kafka.partition_reader import partition_bounds

# Fine enough for a drain of one second, and negligible beside the observed work.
SAMPLE_S = 0.05
ANSWER_S_MAX = 10.0
# Ten times slower than any peer has been on two cores: what takes longer hangs.
DRAIN_S_MAX = 300.0
# Of peers, which know no parts: the largest rows of the workloads go in one message.
PEER_MESSAGE_BYTES_MAX = 8 * 1024 * 1024
# Parts of a Spark process, and how the names of the JVM's threads begin.
JVM_THREADS = {"JVM, compiling": ("C1 Comp", "C2 Comp"), "JVM, garbage": ("GC Thr", "G1 ")}
JVM_TASKS, PYTHON = "JVM, else", "Python"


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process: user and system, all threads. Halt if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError) as gone:
        message = f"process {pid} ended while it was measured"
        raise Halt(message) from gone
    # The name in brackets may contain spaces; utime and stime are the 14th and 15th field.
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def handles(pid: int) -> int:
    """Return how many files, sockets and the like a process has open; 0 if it is gone."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def process_tree(pid: int) -> dict[int, int]:
    """Return the parents of a process and its descendants; empty if it is gone."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    found = {pid: parents[pid]} if pid in parents else {}
    todo = list(found)
    while todo:
        children = [each for each, parent in parents.items() if parent == todo[-1]]
        todo.pop()
        found.update((each, parents[each]) for each in children)
        todo += children
    return found


def tree_cpu_s(pid: int | None) -> float:
    """Return the CPU time of a process and its descendants, also those that it has waited for.

    Halt if the process is gone.
    """
    return sum(_tree_ticks(pid).values()) / os.sysconf("SC_CLK_TCK")


def spark_cpu_s(pid: int | None) -> dict[str, float]:
    """Return the CPU time of a process that runs Spark: its JVM by kind of thread, and Python.

    Halt if the process is gone. What threads took that have ended is that of the tasks.
    """
    found = dict.fromkeys((*JVM_THREADS, JVM_TASKS, PYTHON), 0)
    for each, ticks in _tree_ticks(pid).items():
        if _name_of(Path(f"/proc/{each}")) != "java":
            found[PYTHON] += ticks
            continue
        found[JVM_TASKS] += ticks
        for thread in Path(f"/proc/{each}/task").glob("*"):
            name = _name_of(thread)
            for kind, begins in JVM_THREADS.items():
                if name.startswith(begins):
                    own = _ticks_of(thread / "stat")
                    found[kind] += own
                    found[JVM_TASKS] -= own
    return {kind: ticks / os.sysconf("SC_CLK_TCK") for kind, ticks in found.items()}


def _tree_ticks(pid: int | None) -> dict[int, int]:
    """Return the ticks of a process and its descendants, by process."""
    if pid is None:
        raise Halt("a process ended while it was measured")
    children: dict[int, list[int]] = {}
    spent: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
        # utime, stime, and of the children that it has waited for: cutime, cstime.
        spent[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    if pid not in spent:
        raise Halt(f"process {pid} ended while it was measured")
    todo, found = [pid], {}
    while todo:
        each = todo.pop()
        found[each] = spent.get(each, 0)
        todo += children.get(each, [])
    return found


def _ticks_of(stat: Path) -> int:
    try:
        return sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _name_of(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def server_cpu_s(process: ServerProcess) -> float:
    """Return the CPU time that a server has used. Halt with its log's tail if it has ended."""
    process.check_alive()
    pid = process.pid
    if pid is None:
        message = f"{process.name} ended while it was measured"
        raise Halt(message)
    return cpu_seconds(pid)


class TopicEnd:
    """The end offset of a topic's only partition, as a `read_committed` consumer sees it."""

    def __init__(self, config: ClientConfig, topic: str) -> None:
        """Connect on first use."""
        self._config = config
        self._topic = topic
        self._consumer = open_consumer(config)

    def __call__(self) -> int:
        """Ask the broker. Raises Retry after ANSWER_S_MAX without an answer."""
        deadline = time.monotonic() + ANSWER_S_MAX
        while True:
            try:
                return partition_bounds(self._consumer, self._config, self._topic)[1]
            except Retry:
                # A new topic briefly has no leader.
                if time.monotonic() > deadline:
                    raise
                time.sleep(SAMPLE_S)

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


def sample_until(
    done: Callable[[], float],
    finished: Callable[[float], bool],
    *,
    cpu_s: Callable[[], float],
    sample_s: float = SAMPLE_S,
    check_alive: Callable[[], None],
) -> list[Sample]:
    """Sample `done` until `finished(done)`; the last sample is the first that is finished.

    `check_alive` raises if the process has ended too early. Raises Halt after DRAIN_S_MAX.
    """
    deadline = time.monotonic() + DRAIN_S_MAX
    samples: list[Sample] = []
    while True:
        value = done()
        samples.append(Sample(time.monotonic(), value, cpu_s()))
        if finished(value):
            return samples
        check_alive()
        if time.monotonic() > deadline:
            message = f"the drain has not finished after {DRAIN_S_MAX:.0f} s; it is at {value:.0f}"
            raise Halt(message)
        time.sleep(sample_s)


def create_topic(config: ClientConfig, topic: str) -> None:
    """Create a topic of one partition and wait until clients see it. Raises Retry or UsageError."""
    admin = open_admin(config)
    deadline = time.monotonic() + ANSWER_S_MAX
    with kafka_errors(f"creating topic {topic}", config.brokers):
        settings = {"max.message.bytes": str(PEER_MESSAGE_BYTES_MAX)}
        wanted = NewTopic(topic, num_partitions=1, replication_factor=1, config=settings)
        admin.create_topics([wanted])[topic].result(ANSWER_S_MAX)
        while admin.list_topics(topic, ANSWER_S_MAX).topics[topic].error is not None:
            if time.monotonic() > deadline:
                message = f"topic {topic} is not there {ANSWER_S_MAX:.0f} s after its creation"
                raise Retry(message)
            time.sleep(SAMPLE_S)
