"""Reads a streaming query's checkpoint: the query's id, and where each batch ends.

Spark writes the id before the first batch and the end of a batch before that batch runs. Files on
object stores are read as the table is, with the same storage options; others (local folders, HDFS)
through pyarrow.
"""

import json
from collections.abc import Mapping
from typing import Any

from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from event_token.errors import Halt
from event_token.position import StreamPosition
from spark_consumers.sink_query.resume import CheckpointState
from spark_consumers.source.stream_offset import StreamOffset

# `v1`, one line of query metadata, then one line per source (`-`: no offset).
_OFFSET_LOG_VERSION = "v1"
_SOURCES_FROM_LINE = 2
# Spark writes to S3 under `s3a`; pyarrow knows neither that scheme nor the storage options.
_OBJECT_STORES = ("s3://", "s3a://", "gs://", "az://", "abfs://", "abfss://")


def is_begun(checkpoint: str, storage_options: Mapping[str, str]) -> bool:
    """Tell whether a query has created the checkpoint."""
    filesystem, path = _place(checkpoint, "metadata", storage_options)
    return bool(filesystem.get_file_info(path).type != fs.FileType.NotFound)


def query_id(checkpoint: str, storage_options: Mapping[str, str]) -> str:
    """Return the query id that Spark chose when it created the checkpoint."""
    text = _read(checkpoint, "metadata", storage_options)
    try:
        found = json.loads(text)["id"]
    except (ValueError, KeyError, TypeError) as error:
        raise Halt(f"{checkpoint}/metadata holds no query id: {text[:200]!r}") from error
    return str(found)


def checkpoint_state(checkpoint: str, storage_options: Mapping[str, str]) -> CheckpointState | None:
    """Return the query of a checkpoint and its last committed batch; None without a checkpoint."""
    if not is_begun(checkpoint, storage_options):
        return None
    query = query_id(checkpoint, storage_options)
    filesystem, folder = _place(checkpoint, "commits", storage_options)
    files = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    committed = [int(file.base_name) for file in files if file.base_name.isdecimal()]
    if not committed:
        return CheckpointState(query)
    last = max(committed)
    return CheckpointState(query, last, _end_of(checkpoint, last, storage_options).position)


def batch_end(
    checkpoint: str, batch_id: int, storage_options: Mapping[str, str]
) -> StreamOffset | None:
    """Return where a planned batch ends, or None if the query has other sources too."""
    lines = _read(checkpoint, f"offsets/{batch_id}", storage_options).splitlines()
    if not lines or lines[0] != _OFFSET_LOG_VERSION:
        raise Halt(f"{checkpoint}/offsets/{batch_id} does not have version {_OFFSET_LOG_VERSION}")
    sources = lines[_SOURCES_FROM_LINE:]
    if len(sources) != 1:
        return None
    try:
        return StreamOffset.from_document(json.loads(sources[0]))
    except (ValueError, Halt):
        return None


def batch_span(
    checkpoint: str, batch_id: int, storage_options: Mapping[str, str]
) -> tuple[StreamPosition, StreamPosition]:
    """Return where a planned batch begins and ends. Halt if the query has other sources too.

    The end of the batch before it is kept for as long as Spark may run the batch again.
    """
    end = _end_of(checkpoint, batch_id, storage_options)
    begin = end.begin or _end_of(checkpoint, batch_id - 1, storage_options)
    return begin.position, end.position


def _end_of(checkpoint: str, batch_id: int, storage_options: Mapping[str, str]) -> StreamOffset:
    found = batch_end(checkpoint, batch_id, storage_options)
    if found is None:
        raise Halt(f"{checkpoint}/offsets/{batch_id} is not of one shardstream source alone")
    return found


def _read(checkpoint: str, name: str, storage_options: Mapping[str, str]) -> str:
    filesystem, path = _place(checkpoint, name, storage_options)
    try:
        with filesystem.open_input_stream(path) as stream:
            return bytes(stream.read()).decode("utf-8")
    except FileNotFoundError as error:
        raise Halt(
            f"{checkpoint.rstrip('/')}/{name} is missing: set option checkpointLocation on the "
            f"query itself, and keep the checkpoint for as long as the target is written"
        ) from error


def _place(
    checkpoint: str, name: str, storage_options: Mapping[str, str]
) -> tuple[fs.FileSystem, str]:
    """Return the file system of a checkpoint, and the path of one of its files there."""
    if checkpoint.startswith(_OBJECT_STORES):
        handler: Any = DeltaStorageHandler(checkpoint, dict(storage_options))
        return fs.PyFileSystem(handler), name
    try:
        filesystem, folder = fs.FileSystem.from_uri(checkpoint)
    except ValueError:  # a plain relative or absolute path
        filesystem, folder = fs.LocalFileSystem(), checkpoint
    return filesystem, f"{folder.rstrip('/')}/{name}"
