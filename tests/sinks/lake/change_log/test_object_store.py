"""A change log on an object store, on a server with S3's interface."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from event_token import ShardPosition, StreamPosition
from event_token.errors import Halt, UsageError
from shardstream.commands.sinks.sink_run import lake_places
from sinks.errors import ChangeLogConflict
from sinks.lake.change_log.delta_commit import commit, ensure_table, open_table
from sinks.lake.change_log.reading import check_changelog
from sinks.resume import CheckpointState
from spark_consumers.sink_query import (
    batch_end,
    checkpoint_state,
    query_id,
)
from spark_consumers.source.stream_offset import StreamOffset
from tests.shardstream.command_line import run, write_settings
from tests.sinks.lake.change_log.log_rows import SCHEMA, batch_of
from tests.sinks.lake.change_log.s3_server import BUCKET, S3Server, s3_server
from tests.spark_consumers.shop import NO_DATABASE


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """A server with an empty bucket."""
    with s3_server() as server:
        yield server


def test_a_change_log_on_an_object_store_is_queried(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B13: `query` takes a URL, with delta-rs's credentials of the environment."""
    for name, value in s3.options.items():
        monkeypatch.setenv(name.upper(), value)
    target = f"s3://{BUCKET}/query/log"
    ensure_table(target, SCHEMA, s3.options)
    batch = batch_of(target, [1, 2, 3], 0, "q", s3.options)
    commit(open_table(target, s3.options), SCHEMA, batch)
    config = str(write_settings(tmp_path, "127.0.0.1:1", "shop", {"-": NO_DATABASE}))

    shown = run("query", target, "SELECT max(seq) AS last FROM log")
    refused = run("changelog", "shop", "--target", target, "--config", config)

    report = check_changelog(target, s3.options)
    assert (shown.returncode, "3" in shown.stdout) == (0, True), shown.stderr
    assert refused.returncode == 2
    assert f"--target {target}: name --checkpoint too" in refused.stderr
    assert (report.changes, report.lost, report.repeated, report.out_of_order) == (3, 0, 0, 0)


def test_of_two_writers_to_an_object_store_one_fails(s3: S3Server) -> None:
    """B13: a commit is a conditional put: of two for one version, the second one fails by name."""
    target = f"s3://{BUCKET}/two/log"
    ensure_table(target, SCHEMA, s3.options)
    tables = [open_table(target, s3.options) for _ in range(2)]
    batches = [batch_of(target, [1], 0, query, s3.options) for query in ("one", "other")]

    assert commit(tables[0], SCHEMA, batches[0])
    with pytest.raises(ChangeLogConflict, match="another query wrote to"):
        commit(tables[1], SCHEMA, batches[1])


def test_a_checkpoint_on_an_object_store_is_read(s3: S3Server) -> None:
    """B13: the sink finds the query's id and the end of a batch where Spark writes them, on s3a."""
    end = StreamOffset(StreamPosition(0, 70, {"-": ShardPosition(3, 2, None)}))
    document = json.dumps(end.to_document())
    s3.put(f"{BUCKET}/checkpoint/metadata", b'{"id": "q-1"}')
    s3.put(f"{BUCKET}/checkpoint/offsets/0", f"v1\n{{}}\n{document}".encode())
    checkpoint = f"s3a://{BUCKET}/checkpoint"

    assert query_id(checkpoint, s3.options) == "q-1"
    assert batch_end(checkpoint, 0, s3.options) == end
    assert checkpoint_state(checkpoint, s3.options) == CheckpointState("q-1")
    assert checkpoint_state(f"{checkpoint}-of-nobody", s3.options) is None
    s3.put(f"{BUCKET}/checkpoint/commits/0", b"v1")
    assert checkpoint_state(checkpoint, s3.options) == CheckpointState("q-1", 0, end.position)
    with pytest.raises(Halt, match=f"{checkpoint}/offsets/1 is missing"):
        batch_end(checkpoint, 1, s3.options)


@pytest.mark.parametrize(
    ("target", "checkpoint", "expected"),
    [
        ("/lake/log/", None, ("/lake/log", "/lake/log.checkpoint")),
        ("file:///lake/log", None, ("file:///lake/log", "file:///lake/log.checkpoint")),
        ("s3://lake/log", "s3a://lake/c", ("s3://lake/log", "s3a://lake/c")),
        ("s3://lake/log", "/local/c", ("s3://lake/log", "/local/c")),
    ],
)
def test_urls_stay_urls(target: str, checkpoint: str | None, expected: tuple[str, str]) -> None:
    """B13: a URL is passed on as it is; a folder becomes an absolute path."""
    assert lake_places(target, checkpoint) == expected


def test_a_relative_folder_is_that_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative folder is made absolute, because Spark has another working folder."""
    monkeypatch.chdir(tmp_path)

    assert lake_places("log", None) == (
        str(tmp_path / "log"),
        str(tmp_path / "log.checkpoint"),
    )
    with pytest.raises(UsageError, match="name --checkpoint too"):
        lake_places("s3://lake/log", None)
