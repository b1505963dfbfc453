"""A table of current rows on an object store, on a server with S3's interface."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sinks.errors import LakeConflict
from sinks.lake.delta.commit import vacuum
from tests.sinks.lake.change_log.s3_server import BUCKET, S3Server, s3_server
from tests.sinks.lake.delta.lake_rows import Batch, Lake, Rows, random_batch, row


@pytest.fixture(scope="module")
def s3(real_servers: None) -> Iterator[S3Server]:
    """A server with an empty bucket."""
    with s3_server() as server:
        yield server


@pytest.mark.full
def test_batches_on_an_object_store_leave_what_a_dictionary_holds(s3: S3Server) -> None:
    """Tables work by the same URLs and options as delta-rs uses."""
    lake = Lake(f"s3://{BUCKET}/state/orders", s3.options).create()
    random_, model = random.Random(7), Rows()

    for number in range(8):
        batch = random_batch(random_, number)
        lake.run(number, batch)
        batch.apply(model)
    unused = vacuum(lake.url, s3.options, time.time())

    assert lake.read() == model
    assert any(path.startswith("_vectors/") for path in unused)
    assert by_another_process(lake) == model


def by_another_process(lake: Lake) -> Rows:
    table = Lake(lake.url, lake.options).open()
    found = table.everything(range(table.snapshot.buckets))
    return {each["_key"]: each for each in table.read(found).to_pylist()}


def test_of_two_drivers_at_once_one_commits(s3: S3Server) -> None:
    """A conditional put decides: the work of the other driver never becomes part of the table."""
    drivers = [Lake(f"s3://{BUCKET}/two/orders", s3.options, tasks=1) for _ in range(2)]
    drivers[0].create()
    expected = Rows()

    for number in range(2):
        batches = [Batch([row(n, 2 * number + i) for n in range(20)]) for i in range(2)]
        staged = [lake.stage(batch) for lake, batch in zip(drivers, batches, strict=True)]
        with ThreadPoolExecutor() as pool:
            commits = [
                pool.submit(lake.commit, number, found)
                for lake, found in zip(drivers, staged, strict=True)
            ]
        failed = [type(done.exception()) for done in commits if done.exception()]
        assert failed == [LakeConflict]
        batches[0 if commits[0].exception() is None else 1].apply(expected)

    assert drivers[0].read() == expected
