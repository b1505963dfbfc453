"""What a streaming query's checkpoint says about the query: its id, and where each batch ends.

Spark writes both files before the first batch, and before each batch, runs. They are read through
pyarrow, so local folders, HDFS and S3 alike.
"""

import json

from pyarrow import fs

from event_token.errors import Halt
from spark_consumers.source.stream_offset import StreamOffset

# `v1`, then a line of query metadata, then a line a source; a source without an offset has `-`.
_OFFSET_LOG_VERSION = "v1"
_SOURCES_FROM_LINE = 2


def query_id(checkpoint: str) -> str:
    """The id that Spark drew when the checkpoint was made; a new checkpoint has another one."""
    text = _read(checkpoint, "metadata")
    try:
        found = json.loads(text)["id"]
    except (ValueError, KeyError, TypeError) as error:
        raise Halt(f"{checkpoint}/metadata is no query's metadata: {text[:200]!r}") from error
    return str(found)


def batch_end(checkpoint: str, batch_id: int) -> StreamOffset | None:
    """Where a planned batch ends; None when the query does not read from shardstream alone."""
    lines = _read(checkpoint, f"offsets/{batch_id}").splitlines()
    if not lines or lines[0] != _OFFSET_LOG_VERSION:
        raise Halt(f"{checkpoint}/offsets/{batch_id} is not of version {_OFFSET_LOG_VERSION}")
    sources = lines[_SOURCES_FROM_LINE:]
    if len(sources) != 1:
        return None
    try:
        return StreamOffset.from_document(json.loads(sources[0]))
    except (ValueError, Halt):
        return None


def _read(checkpoint: str, name: str) -> str:
    try:
        filesystem, folder = fs.FileSystem.from_uri(checkpoint)
    except ValueError:  # a plain relative or absolute path
        filesystem, folder = fs.LocalFileSystem(), checkpoint
    path = f"{folder.rstrip('/')}/{name}"
    try:
        with filesystem.open_input_stream(path) as stream:
            return bytes(stream.read()).decode("utf-8")
    except FileNotFoundError as error:
        raise Halt(
            f"{path} is not there: set option checkpointLocation on the query itself, and keep the "
            f"checkpoint for as long as the change log grows"
        ) from error
