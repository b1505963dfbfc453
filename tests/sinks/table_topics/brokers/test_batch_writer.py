import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from event_token.errors import Retry, UsageError
from shardstream.local.processes import with_parent_guard
from sinks.errors import TargetConflict
from sinks.table_topics import transaction
from sinks.table_topics.claim import claim_topics
from sinks.table_topics.positions import Owner
from sinks.table_topics.transaction import TaskTransaction
from spark_consumers.spark_errors import original_error
from spark_consumers.table_topics import ensure_topic
from tests.sinks.table_topics import killed_task
from tests.sinks.table_topics.topic_tasks import (
    PARTITIONS,
    TABLE,
    TopicTask,
    committed,
    position,
)
from topics.kafka.errors import Fenced

KILLED_S_MAX = 120.0


def test_a_batch_that_runs_again_writes_nothing_twice(task: TopicTask) -> None:
    """Spark died between the task's commit and its own."""
    task.write(position(a=0, b=0), position(a=3, b=2), is_first=True)

    again = task.write(position(a=0, b=0), position(a=3, b=2), is_first=True)

    assert again == 0
    assert committed(task.config, task.topic) == {"a": [1, 2, 3], "b": [1, 2]}


def test_a_lost_checkpoint_loses_nothing(task: TopicTask) -> None:
    """A new query plans other batches; what is there is dropped, what is not is written."""
    task.write(position(a=0, b=0), position(a=3, b=2), is_first=True)
    task.write(position(a=3, b=2), position(a=5, b=2))

    task.write(position(a=0, b=0), position(a=1, b=1), is_first=True)
    task.write(position(a=1, b=1), position(a=9, b=3))

    found = committed(task.config, task.topic)
    assert found == {"a": list(range(1, 10)), "b": [1, 2, 3]}


def test_a_marker_waits_for_room_behind_a_full_queue(
    task: TopicTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a large batch fill the producer's queue: the batch is written all the same."""
    monkeypatch.setattr(transaction, "_QUEUE_MESSAGES_MAX", 10)

    written = task.write(position(a=0), position(a=10), is_first=True)

    assert written == 10
    assert committed(task.config, task.topic) == {"a": list(range(1, 11))}


def test_a_gap_stops(task: TopicTask) -> None:
    """The checkpoint is ahead of the topics, also of topics that know nothing of it."""
    with pytest.raises(TargetConflict, match="of which the topics know nothing"):
        task.write(position(a=0), position(a=3))
    task.write(position(a=0), position(a=3), is_first=True)

    with pytest.raises(TargetConflict, match="written up to seq 3, the batch begins behind"):
        task.write(position(a=4), position(a=5))

    assert committed(task.config, task.topic) == {"a": [1, 2, 3]}


@pytest.mark.parametrize("point", killed_task.POINTS)
def test_a_task_that_is_killed_leaves_each_row_once(task: TopicTask, point: str) -> None:
    """Kill -9 between fencing, rows, marker and commit: the batch runs again, no row is lost."""
    task.write(position(a=0), position(a=2), is_first=True)

    arguments = [sys.executable, killed_task.__file__, task.config.brokers, task.keyspace, point]
    ended = subprocess.run(
        with_parent_guard(arguments),
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        timeout=KILLED_S_MAX,
        check=False,
        capture_output=True,
        text=True,
    )
    task.write(position(a=2), position(a=5))

    assert ended.returncode in {-signal.SIGKILL, 128 + signal.SIGKILL}, ended.stderr
    assert committed(task.config, task.topic) == {"a": [1, 2, 3, 4, 5]}


def test_a_new_run_takes_over_and_the_older_one_is_stopped_by_name(task: TopicTask) -> None:
    """Two queries of the same topics: the one that started first stops."""
    config, keyspace = task.config, task.keyspace
    first = claim_topics(config, keyspace, keyspace, Owner(0, "first", 1, PARTITIONS))
    older = TopicTask(config, keyspace, generation=first.owner.generation)
    older.write(position(a=0), position(a=3), is_first=True)

    second = claim_topics(config, keyspace, keyspace, Owner(0, "second", 1, PARTITIONS))
    with pytest.raises(TargetConflict, match="took over these topics: second"):
        older.write(position(a=3), position(a=4))
    newer = TopicTask(config, keyspace, generation=second.owner.generation)
    newer.write(position(a=3), position(a=5), is_first=True)

    assert first.position is None
    assert second.position == position(a=3)
    assert committed(config, task.topic) == {"a": [1, 2, 3, 4, 5]}


def test_a_table_that_a_run_left_out_is_not_written_again(task: TopicTask) -> None:
    """Its topic lacks the changes of the time between; a topic without records lacks none."""
    config, keyspace = task.config, task.keyspace
    others = ("shop.items",)

    def claim(*tables: str, key_range: str = "-") -> TopicTask:
        wanted = Owner(0, "run", 1, PARTITIONS, key_range=key_range, tables=tables)
        owner = claim_topics(config, keyspace, keyspace, wanted).owner
        return TopicTask(config, keyspace, generation=owner.generation, tables=owner.tables)

    claim().write(position(a=0), position(a=3), is_first=True)
    claim(*others)
    claim()  # the run before has written nothing, so it has left out nothing
    claim(*others).write(position(a=3), position(a=4))
    ensure_topic(config, f"{keyspace}.shop.empty", PARTITIONS, None)

    for tables in ((), (TABLE,), (*others, TABLE)):
        with pytest.raises(TargetConflict, match=rf"{task.topic}: an earlier run left out"):
            claim(*tables)
    claim(*others, "shop.empty")
    with pytest.raises(TargetConflict, match="begun with --key-range -, and this query has -80"):
        claim(*others, key_range="-80")


def test_a_task_that_is_fenced_while_it_writes_commits_nothing(task: TopicTask) -> None:
    """The other producer of its id has aborted what it wrote."""
    identity = task.identity
    with TaskTransaction(task.config, identity.transactional_id) as fenced:
        fenced.fence()
        fenced.begin()
        fenced.write(task.topic, b"a", b"1", [])
        fenced.flush()
        task.write(position(a=0), position(a=2), is_first=True)

        with pytest.raises(Fenced, match="fenced by another producer"):
            fenced.commit()

    assert committed(task.config, task.topic) == {"a": [1, 2]}


def test_a_transaction_that_took_too_long_is_run_again(
    task: TopicTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers fence its producer as if another one had taken over, and the batch is written."""
    with TaskTransaction(task.config, task.identity.transactional_id) as slow:
        slow.fence()
        slow.begin()
        slow.write(task.topic, b"a", b"1", [])
        slow.flush()
        with TaskTransaction(task.config, task.identity.transactional_id) as brokers:
            brokers.fence()
        monkeypatch.setattr(slow, "_began_s", -math.inf)
        with pytest.raises(Retry, match="took longer than 300 s"):
            slow.commit()

    task.write(position(a=0), position(a=2), is_first=True)
    assert committed(task.config, task.topic) == {"a": [1, 2]}


def test_another_number_of_tasks_or_partitions_is_refused(task: TopicTask) -> None:
    """Keys would go to other tasks, or other partitions, beside what is there."""
    config, keyspace = task.config, task.keyspace
    claim_topics(config, keyspace, keyspace, Owner(0, "first", 2, PARTITIONS))

    with pytest.raises(TargetConflict, match="begun with --tasks 2, and this query has 4"):
        claim_topics(config, keyspace, keyspace, Owner(0, "second", 4, PARTITIONS))
    with pytest.raises(TargetConflict, match="begun with --partitions 2"):
        claim_topics(config, keyspace, keyspace, Owner(0, "second", 2, 3))
    with pytest.raises(UsageError, match="has 2 partitions, not 3") as raised:
        ensure_topic(config, task.topic, 3, None)
    through_spark = original_error(f"event_token.errors.UsageError: {raised.value}\n\n\tat org")
    assert str(through_spark) == str(raised.value)


def test_a_run_continues_where_the_task_furthest_behind_ends(task: TopicTask) -> None:
    """A crash leaves tasks one batch apart: both write what they lack, and nothing else."""
    config, keyspace = task.config, task.keyspace
    claim_topics(config, keyspace, keyspace, Owner(0, "first", 2, PARTITIONS))
    one, two = (TopicTask(config, keyspace, n, 1, 2) for n in range(2))
    one.write(position(a=2), position(a=4), is_first=True)

    in_first = claim_topics(config, keyspace, keyspace, Owner(0, "second", 2, PARTITIONS))
    two = TopicTask(config, keyspace, 1, in_first.owner.generation, 2)
    two.write(position(a=2), position(a=3), is_first=True)
    later = claim_topics(config, keyspace, keyspace, Owner(0, "third", 2, PARTITIONS))

    assert in_first.position == position(a=2)
    assert later.position == position(a=3)
