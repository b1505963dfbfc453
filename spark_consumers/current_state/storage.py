"""The folder of a table, on a file system or an object store."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.exceptions import AlreadyExistsError
from obstore.store import LocalStore, ObjectStore, from_url

# Bytes that a reader of a remote Parquet file asks for at least: fewer requests than columns.
READ_BYTES_MIN = 1024 * 1024


class Storage:
    """Files below a URL, by paths relative to it; `options` are those of delta-rs."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.url = url
        self.options = dict(options)
        is_local = "://" not in url or url.startswith("file://")
        self._folder = Path(url.removeprefix("file://")) if is_local else None
        self._store = self._open()

    def _open(self) -> ObjectStore:
        if self._folder is not None:
            return LocalStore(self._folder, mkdir=True)
        # The keys of all kinds of stores are allowed; those of other kinds are refused by name.
        config: Any = {key.lower(): value for key, value in self.options.items()}
        store: ObjectStore = from_url(self.url, config=config)
        return store

    def create(self, path: str, content: bytes) -> bool:
        """Write a file unless there is one of this name; return whether it was written.

        One atomic step: link() on a file system, a conditional PUT on an object store.
        """
        try:
            obstore.put(self._store, path, content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True

    def write(self, path: str, content: bytes) -> None:
        """Write a file of a new name."""
        obstore.put(self._store, path, content)

    def read(self, path: str) -> bytes:
        """Return the content of a file; FileNotFoundError."""
        return bytes(obstore.get(self._store, path).bytes())

    def read_ranges(self, path: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """Return some parts of a file; FileNotFoundError."""
        parts = obstore.get_ranges(self._store, path, starts=starts, ends=ends)
        return [bytes(part) for part in parts]

    def parquet(self, path: str) -> pq.ParquetFile:
        """Open a Parquet file; FileNotFoundError."""
        if self._folder is not None:
            return pq.ParquetFile(self._folder / path, memory_map=True)
        reader = obstore.open_reader(self._store, path, buffer_size=READ_BYTES_MIN)
        return pq.ParquetFile(pa.PythonFile(reader, mode="r"), pre_buffer=True)

    def names(self, folder: str = "", after: str | None = None) -> Iterator[tuple[str, datetime]]:
        """Yield (path, time of its last change) of all files below a folder, at any depth."""
        for batch in obstore.list(self._store, prefix=folder, offset=after):
            for file in batch:
                yield file["path"], file["last_modified"]

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files."""
        obstore.delete(self._store, paths)
