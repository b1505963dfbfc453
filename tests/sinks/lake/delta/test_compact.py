"""Which files a batch rewrites: pure, on files that exist in the log only."""

from sinks.lake.delta.log import BUCKETS_SETTING, DataFile, TableVersion, VectorPlace
from sinks.lake.delta.stored_table import ROWS_MAX, due_files


def file(name: str, rows: int, bucket: int = 0, of: int = 1, dead: int = 0) -> DataFile:
    vector = VectorPlace("u", "", 1, 1, dead) if dead else None
    return DataFile(f"b{bucket:03}of{of:03}-{name}.parquet", rows, rows, 0, vector)


def table(*files: DataFile, buckets: int = 1) -> TableVersion:
    metadata = {"configuration": {BUCKETS_SETTING: str(buckets)}}
    return TableVersion(1, metadata, files={each.path: each for each in files})


def test_rows_are_copied_a_few_times_however_large_the_table() -> None:
    """After 2,000 batches a row has been copied four times, and a key is sought in some files."""
    files, copied = [file("base", 1_000_000)], 0

    for number in range(2_000):
        files.append(file(f"batch-{number}", 10))
        due = due_files(table(*files), {}, (0, 1))
        if due:
            rows = sum(each.rows for each in due)
            copied += rows
            files = [each for each in files if each not in due] + [file(f"of-{number}", rows)]
        assert len(files) <= 1 + 4 * 8

    assert copied <= 4 * 20_000
    assert sum(each.rows for each in files) == 1_020_000


def test_a_bucket_of_deleted_rows_is_rewritten_as_a_whole() -> None:
    """More than 30 % of deleted rows are removed, those of this batch among them."""
    files = [file("base", 1_000, dead=200), file("batch", 100)]

    assert due_files(table(*files), {files[0].path: 100}, (0, 1)) == []
    assert due_files(table(*files), {files[0].path: 140}, (0, 1)) == files


def test_a_batch_rewrites_a_part_of_the_table() -> None:
    """At most a quarter of the buckets, and no more rows than fit: the worst ones come first."""
    files = [file("x", 1_000, bucket, 16, dead=400 + bucket) for bucket in range(16)]
    large = [file("x", ROWS_MAX, bucket, 16, dead=ROWS_MAX // 2) for bucket in range(16)]

    assert due_files(table(*files, buckets=16), {}, (0, 1)) == files[:11:-1]
    assert len(due_files(table(*large, buckets=16), {}, (0, 1))) == 2


def test_a_task_rewrites_its_own_buckets_only() -> None:
    """A file that belongs to several tasks is left to maintenance, which has all buckets."""
    mine = file("mine", 100, bucket=1, of=4, dead=90)
    shared = file("shared", 100, bucket=0, of=1)
    theirs = file("theirs", 100, bucket=2, of=4, dead=90)
    snapshot = table(mine, shared, theirs, buckets=4)

    assert due_files(snapshot, {}, (1, 2)) == [mine]
    assert due_files(table(shared, buckets=4), {}, (0, 1)) == [shared]


def test_files_of_former_buckets_are_divided() -> None:
    """After the buckets have doubled, their files are rewritten as time allows."""
    former = [file("x", 100, bucket, 2) for bucket in range(2)]
    urgent = file("y", 100, 3, 4, dead=50)

    assert due_files(table(*former, buckets=4), {}, (0, 2)) == [former[0]]
    assert due_files(table(*former, urgent, buckets=4), {}, (1, 2)) == [urgent]
