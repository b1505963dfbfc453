"""Which worker of a run of tests has which of them, and what they begin with."""

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# So that at the end no worker is still busy with one of these while the others have nothing left.
LONGEST_FIRST = (
    "tests/spark_consumers/",
    "tests/sinks/",
    "tests/topics/arrow/",
    "tests/docs/test_pages.py",
    "tests/shardstream/demo/",
    "tests/resharding/",
    "tests/managed/",
    "tests/packaging/",
    "tests/faults/",
    "tests/producers/session/",
    "tests/shardstream/",
    "tests/producers/",
)
# Files that share what takes long to start or to read, or works even when nobody uses it, share a
# worker.
TOGETHER = {
    "Spark": (
        "tests/sinks/lake/change_log/",
        "tests/sinks/lake/state/",
        "tests/spark_consumers/source/",
    ),
    "another Spark": (
        "tests/sinks/database/",
        "tests/spark_consumers/test_latest_changes.py",
        "tests/spark_consumers/test_sink_frame.py",
        "tests/spark_consumers/test_spark_errors.py",
        "tests/sinks/table_topics/",
        "tests/sinks/test_subscriber_batches.py",
        "tests/spark_consumers/test_reshard.py",
        "tests/topics/arrow/test_table_versions.py",
    ),
    "a broker behind a proxy": (
        "tests/faults/test_credentials.py",
        "tests/faults/test_delayed_commit.py",
        "tests/faults/test_network.py",
        "tests/faults/test_sizes.py",
    ),
    "three brokers": (
        "tests/faults/test_full_disks.py",
        "tests/producers/session/test_producer_kills.py",
        "tests/producers/test_lost_markers.py",
        "tests/shardstream/local/test_broker_loss.py",
        "tests/topics/kafka/test_provisioning.py",
    ),
    "the source": ("tests/test_imports.py", "tests/test_layout.py"),
}


def rank(nodeid: str) -> int:
    """Return the place of a test: tests of a lower one are started before those of a higher one."""
    ranks = (number for number, prefix in enumerate(LONGEST_FIRST) if nodeid.startswith(prefix))
    return next(ranks, len(LONGEST_FIRST))


def unit(nodeid: str) -> str:
    """Return what a test shares a worker with: the other tests of its file, or of a group."""
    for name, prefixes in TOGETHER.items():
        if nodeid.startswith(prefixes):
            return name
    return nodeid.partition("::")[0]


class LongestFirst(LoadFileScheduling):  # type: ignore[misc]  # untyped
    """Gives each worker that has little left the next unit, in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Put back what a worker has left; return the test that it crashed in, None if none.

        xdist puts back what has ended, too: a worker that gets nothing but such a unit reports no
        end and is given no other one, so the run would not end.
        """
        left = {
            scope: [nodeid for nodeid, has_ended in tests.items() if not has_ended]
            for scope, tests in self.assigned_work.pop(node).items()
        }
        crashed = next((nodeid for tests in left.values() for nodeid in tests), None)
        for scope, tests in left.items():
            rest = {nodeid: False for nodeid in tests if nodeid != crashed}
            if rest:
                self.workqueue[scope] = rest
        for other in self.nodes:
            if other in self.registered_collections:  # else it is given some once it is ready
                self._reschedule(other)
        return crashed
